"""``_configsvrCommitDropDatabase``: remove from the catalog a database that its primary shard has dropped."""

import re
from typing import Any

from bson.binary import Binary
from bson.regex import Regex

from shardwright.configd.catalog.transactions import Transaction
from shardwright.configd.commands.command_registry import config_command
from shardwright.configd.commands.operation import Operation
from shardwright.sharding.catalog.database_entry import DatabaseEntry
from shardwright.sharding.versions import DatabaseVersion


@config_command("_configsvrCommitDropDatabase")
async def commit_drop_database(operation: Operation) -> dict[str, Any]:
    """Remove the database's entry and all remaining documents of its collections.

    A database with the same name but another version is kept, because the database meant is already gone.
    """
    name = operation.subject
    version = DatabaseVersion.from_value(operation.arguments.value(b"databaseVersion"))

    async def work(transaction: Transaction) -> list[Binary]:
        document = await transaction.find_one("databases", {"_id": name})
        if document is None or not DatabaseEntry.from_document(document).version.matches(version):
            return []
        of_database = Regex(f"^{re.escape(name)}\\.")
        uuids = [entry["uuid"] for entry in await transaction.find("collections", {"_id": of_database})]
        await transaction.delete_matching("collections", {"_id": of_database})
        await transaction.delete_matching("tags", {"ns": of_database})
        transaction.delete("databases", [name])
        return uuids

    async with operation.primary.locks.hold(f"db:{name.lower()}"):
        uuids = await operation.primary.catalog.transaction(work)
        await operation.primary.catalog.delete("chunks", {"uuid": {"$in": uuids}})
    return {}
