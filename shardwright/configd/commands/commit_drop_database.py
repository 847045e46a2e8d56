"""``_configsvrCommitDropDatabase``: remove from the catalog a database that its primary shard has dropped."""

import re
from collections.abc import Mapping
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

    of_database = Regex(f"^{re.escape(name)}\\.")

    def is_meant(document: Mapping[str, Any] | None) -> bool:
        return document is not None and DatabaseEntry.from_document(document).version.matches(version)

    async def work(transaction: Transaction) -> list[Binary]:
        if not is_meant(await transaction.find_one("databases", {"_id": name})):
            return []
        uuids = [entry["uuid"] for entry in await transaction.find("collections", {"_id": of_database})]
        await transaction.delete_matching("collections", {"_id": of_database})
        transaction.delete("databases", [name])
        return uuids

    catalog = operation.primary.catalog
    async with operation.primary.locks.hold(f"db:{name.lower()}"):
        if is_meant(await catalog.find_by_id("databases", name)):
            await catalog.delete("tags", {"ns": of_database})  # one by one: there may be any number
        uuids = await catalog.transaction(work)
        await catalog.delete("chunks", {"uuid": {"$in": uuids}})
    return {}
