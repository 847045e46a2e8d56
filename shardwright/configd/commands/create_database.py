"""``_configsvrCreateDatabase``: add a database to the catalog and choose its primary shard."""

import re
from typing import Any
from uuid import uuid4

import trio
from bson.regex import Regex
from bson.timestamp import Timestamp

from shardwright.configd.catalog.transactions import Transaction, check_shard_exists
from shardwright.configd.commands.command_registry import config_command
from shardwright.configd.commands.operation import Operation
from shardwright.configd.primary.primary import Primary
from shardwright.sharding.catalog.database_entry import DatabaseEntry
from shardwright.sharding.catalog.shard_entry import ShardEntry
from shardwright.sharding.versions import DatabaseVersion
from shardwright.wire.database_names import is_valid_database_name
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.logger import get_logger

logger = get_logger("configd.create_database")


@config_command("_configsvrCreateDatabase")
async def create_database(operation: Operation) -> dict[str, Any]:
    """Return the version of the database, which is created if it does not exist.

    Raises:
        CommandError: InvalidNamespace or InvalidOptions, the name is not allowed; DatabaseDifferCase; NamespaceExists,
            its primary shard is not the requested one; ShardNotFound.
    """
    name = operation.subject
    wanted = operation.arguments.maybe_string(b"primaryShardId")
    operation.arguments.boolean(b"enableSharding", False)  # no effect, because sharding is enabled for every database
    if name == "config":
        # Its placement is fixed, so nothing will ever compare its version.
        return {"databaseVersion": DatabaseVersion(uuid4(), Timestamp(0, 0), 0).to_document()}
    check_database_creatable(name)
    primary = operation.primary
    # There cannot be two names that differ only in case.
    async with primary.locks.hold(f"db:{name.lower()}"):
        shard = None if wanted is None else await primary.catalog.shard(wanted)
        entry = await _find_existing(primary, name, wanted)
        if entry is None:
            shard, entry = await (_create_somewhere(primary, name) if shard is None else _create(primary, name, shard))
            await _tell_primary(primary, shard, name)
            # An addition of ours: MongoDB 6.0 records that databases are dropped, but not that they are created.
            await operation.log_changes("createDatabase", name, {"primary": shard.id})
    return {"databaseVersion": entry.version.to_document()}


def check_database_creatable(name: str) -> None:
    """Refuse names that a database cannot have.

    Raises:
        CommandError: InvalidNamespace, InvalidOptions.
    """
    if name in ("admin", "local"):
        raise CommandError(ErrorCode.InvalidOptions, f"Cannot manually create database '{name}'")
    if not is_valid_database_name(name):
        raise CommandError(ErrorCode.InvalidNamespace, f"Invalid db name specified: {name}")


def same_but_for_case(name: str) -> dict[str, Any]:
    """The query for databases whose name equals ``name`` regardless of case."""
    return {"_id": Regex(f"^{re.escape(name)}$", "i")}


async def _find_existing(primary: Primary, name: str, wanted: str | None) -> DatabaseEntry | None:
    for document in await primary.catalog.find("databases", same_but_for_case(name)):
        entry = DatabaseEntry.from_document(document)
        if entry.name != name:
            raise CommandError(
                ErrorCode.DatabaseDifferCase,
                f"can't have 2 databases that just differ on case  have: {entry.name} want to add: {name}",
            )
        if wanted is not None and entry.primary != wanted:
            raise CommandError(
                ErrorCode.NamespaceExists, f"database already created on a primary which is different from {wanted}"
            )
        return entry
    return None


async def _choose_primary(primary: Primary) -> ShardEntry:
    """The shard that stores the least data.

    Raises:
        CommandError: ShardNotFound, there is no shard; or a shard did not answer.
    """
    candidates = [shard for shard in await primary.catalog.shards() if not shard.is_draining]
    if not candidates:
        raise CommandError(ErrorCode.ShardNotFound, "No shards found")
    if len(candidates) == 1:
        return candidates[0]
    sizes: dict[str, int] = {}
    errors: list[CommandError] = []

    async def ask(shard: ShardEntry) -> None:
        try:
            reply = await primary.shards.command(shard, "admin", {"listDatabases": 1})
            sizes[shard.id] = int(reply["totalSize"])
        except CommandError as error:
            errors.append(error)

    async with trio.open_nursery() as nursery:
        for shard in candidates:
            nursery.start_soon(ask, shard)
    if errors:
        raise errors[0]
    return min(candidates, key=lambda shard: sizes[shard.id])


async def _create_somewhere(primary: Primary, name: str) -> tuple[ShardEntry, DatabaseEntry]:
    """Create a database on the shard that stores the least data; if that is removed meanwhile, on the next one.

    Raises:
        CommandError: see `_choose_primary`.
    """
    while True:
        shard = await _choose_primary(primary)
        try:
            return await _create(primary, name, shard)
        except CommandError as error:
            if error.code != ErrorCode.ShardNotFound:
                raise


async def _create(primary: Primary, name: str, shard: ShardEntry) -> tuple[ShardEntry, DatabaseEntry]:
    timestamp = await primary.catalog.now()
    entry = DatabaseEntry(name, shard.id, DatabaseVersion(uuid4(), timestamp, 1))

    async def insert(transaction: Transaction) -> None:
        await check_shard_exists(transaction, shard.id)
        if await transaction.find_one("databases", {"_id": name}) is not None:
            raise CommandError(ErrorCode.NamespaceExists, f"database {name} was created meanwhile")
        transaction.put("databases", [entry.to_document()])

    await primary.catalog.transaction(insert)
    logger.info("Created a database", db=name, primary=shard.id, version=str(entry.version))
    return shard, entry


async def _tell_primary(primary: Primary, shard: ShardEntry, name: str) -> None:
    """Have the primary shard load the database's metadata, so that the first request is not refused as stale.

    If the shard cannot be reached now, that request makes it load the metadata.
    """
    try:
        await primary.shards.command(shard, "admin", {"_flushDatabaseCacheUpdates": name})
    except CommandError as error:
        logger.warning(
            "Could not send a shard the metadata of a new database", shard=shard.id, db=name, error=str(error)
        )
