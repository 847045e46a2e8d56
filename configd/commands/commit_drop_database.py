"""``_configsvrCommitDropDatabase``: forget a database that its primary shard has dropped."""

import re
from typing import Any

from bson.regex import Regex

from configd.operation import Operation
from configd.registry import config_command
from configd.transactions import Transaction
from sharding.catalog.database_entry import DatabaseEntry
from sharding.versions import DatabaseVersion


@config_command("_configsvrCommitDropDatabase")
async def commit_drop_database(operation: Operation) -> dict[str, Any]:
    """Remove the database's entry and whatever the catalog still has of its collections.

    A database of the same name but another version stays: the one that was meant has gone already.
    """
    name = operation.subject
    version = DatabaseVersion.from_value(operation.arguments.value("databaseVersion"))

    async def work(transaction: Transaction) -> None:
        document = await transaction.find_one("databases", {"_id": name})
        if document is None or not DatabaseEntry.from_document(document).version.matches(version):
            return
        of_database = Regex(f"^{re.escape(name)}\\.")
        for entry in await transaction.find("collections", {"_id": of_database}):
            await transaction.delete("chunks", {"uuid": entry["uuid"]})
        await transaction.delete("collections", {"_id": of_database})
        await transaction.delete("tags", {"ns": of_database})
        await transaction.delete("databases", {"_id": name})

    async with operation.primary.locks.hold(f"db:{name.lower()}"):
        await operation.primary.catalog.transaction(work)
    return {}
