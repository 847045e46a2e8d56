"""Commits of database changes: create with a primary shard, drop, and move to another primary shard."""

import re
from collections.abc import Mapping
from typing import Any
from uuid import uuid4

import trio
from bson.binary import Binary
from bson.regex import Regex
from bson.timestamp import Timestamp

from shardwright.configd.catalog.transactions import Transaction, check_shard_exists
from shardwright.configd.commands.operation import Operation
from shardwright.configd.term.term import REMOVING_SHARDS, Term
from shardwright.sharding.catalog.documents import DatabaseEntry, ShardEntry
from shardwright.sharding.versions import DatabaseVersion
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.logger import get_logger
from shardwright.wire.request import is_valid_database_name

logger = get_logger("configd.databases")


async def create_database(operation: Operation) -> dict[str, Any]:
    """Return the version of the database, which is created if it does not exist.

    Raises:
        CommandError: InvalidNamespace or InvalidOptions, the name is not allowed; DatabaseDifferCase; NamespaceExists,
            its primary shard is not the requested one; ShardNotFound.
    """
    name = operation.subject
    wanted = operation.arguments.maybe_string(b"primaryShardId")
    operation.arguments.boolean(b"enableSharding", False)  # no effect: sharding is enabled for every database
    if name == "config":
        # Its placement is fixed, so nothing will ever compare its version.
        return {"databaseVersion": DatabaseVersion(uuid4(), Timestamp(0, 0), 0).to_document()}
    check_database_creatable(name)
    primary = operation.term
    # Names that differ only in case exclude each other.
    async with primary.locks.hold(f"db:{name.lower()}"):
        shard = None if wanted is None else await primary.catalog.shard(wanted)
        entry = await _find_existing(primary, name, wanted)
        if entry is None:
            create = _create_somewhere(operation, name) if shard is None else _create(operation, name, shard)
            shard, entry = await create
            await _tell_primary(primary, shard, name)
    return {"databaseVersion": entry.version.to_document()}


def check_database_creatable(name: str) -> None:
    """Refuse names that a database cannot have, with InvalidNamespace or InvalidOptions."""
    if name in ("admin", "local"):
        raise CommandError(ErrorCode.InvalidOptions, f"Cannot manually create database '{name}'")
    if not is_valid_database_name(name):
        raise CommandError(ErrorCode.InvalidNamespace, f"Invalid db name specified: {name}")


def same_but_for_case(name: str) -> dict[str, Any]:
    """Return the query for databases whose name equals ``name`` regardless of case."""
    return {"_id": Regex(f"^{re.escape(name)}$", "i")}


async def _find_existing(term: Term, name: str, wanted: str | None) -> DatabaseEntry | None:
    for document in await term.catalog.find("databases", same_but_for_case(name)):
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


async def _choose_primary(term: Term) -> ShardEntry:
    """Choose the shard that stores the least data; raises ShardNotFound, or the error of a shard."""
    candidates = [shard for shard in await term.catalog.shards() if not shard.is_draining]
    if not candidates:
        raise CommandError(ErrorCode.ShardNotFound, "No shards found")
    if len(candidates) == 1:
        return candidates[0]
    sizes: dict[str, int] = {}
    errors: list[CommandError] = []

    async def ask(shard: ShardEntry) -> None:
        try:
            reply = await term.shards.command(shard, "admin", {"listDatabases": 1})
            sizes[shard.id] = int(reply["totalSize"])
        except CommandError as error:
            errors.append(error)

    async with trio.open_nursery() as nursery:
        for shard in candidates:
            nursery.start_soon(ask, shard)
    if errors:
        raise errors[0]
    return min(candidates, key=lambda shard: sizes[shard.id])


async def _create_somewhere(operation: Operation, name: str) -> tuple[ShardEntry, DatabaseEntry]:
    """Create a database on the shard that stores the least data, or on the next one if that shard is removed."""
    while True:
        shard = await _choose_primary(operation.term)
        try:
            return await _create(operation, name, shard)
        except CommandError as error:
            if error.code != ErrorCode.ShardNotFound:
                raise


async def _create(operation: Operation, name: str, shard: ShardEntry) -> tuple[ShardEntry, DatabaseEntry]:
    catalog = operation.term.catalog
    timestamp = await catalog.now()
    entry = DatabaseEntry(name, shard.id, DatabaseVersion(uuid4(), timestamp, 1))

    async def insert(transaction: Transaction) -> None:
        await check_shard_exists(transaction, shard.id)
        if await transaction.find_one("databases", {"_id": name}) is not None:
            raise CommandError(ErrorCode.NamespaceExists, f"database {name} was created meanwhile")
        transaction.put("databases", [entry.to_document()])

    async with operation.committing():
        await catalog.transaction(insert)
        # An addition of ours: MongoDB 6.0 records that databases are dropped, but not that they are created.
        await operation.log_changes("createDatabase", name, {"primary": shard.id})
    logger.info("Created a database", db=name, primary=shard.id, version=str(entry.version))
    return shard, entry


async def _tell_primary(term: Term, shard: ShardEntry, name: str) -> None:
    """Load the database's metadata on the primary shard, so that the first request is not refused as stale.

    If the shard cannot be reached now, the first request makes it load the metadata.
    """
    try:
        await term.shards.command(shard, "admin", {"_flushDatabaseCacheUpdates": name})
    except CommandError as error:
        logger.warning(
            "Could not send a shard the metadata of a new database", shard=shard.id, db=name, error=str(error)
        )


async def commit_drop_database(operation: Operation) -> dict[str, Any]:
    """Remove the database's entry and all remaining documents of its collections.

    A database with the same name but another version is kept: the database to drop is already gone.
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

    catalog = operation.term.catalog
    async with operation.committing(f"db:{name.lower()}"):
        if is_meant(await catalog.find_by_id("databases", name)):
            await catalog.delete("tags", {"ns": of_database})  # one by one: there may be any number
        uuids = await catalog.transaction(work)
        await catalog.delete("chunks", {"uuid": {"$in": uuids}})
    return {}


async def commit_move_primary(operation: Operation) -> dict[str, Any]:
    """Change the database's primary shard, or confirm an earlier change: only the old primary shard sends this.

    Raises:
        CommandError: NamespaceNotFound, there is no such database; ConflictingOperationInProgress, its version is not
            the expected one; ShardNotFound, there is no such shard, or it is draining.
    """
    name = operation.subject
    expected = DatabaseVersion.from_value(operation.arguments.required_value(b"expectedDatabaseVersion"))
    to = operation.arguments.string(b"to")
    moved_at = operation.arguments.timestamp(b"movedAt") if operation.arguments.has(b"movedAt") else None

    async def work(transaction: Transaction) -> None:
        document = await transaction.find_one("databases", {"_id": name})
        if document is None:
            raise CommandError(ErrorCode.NamespaceNotFound, f"database {name} not found")
        entry = DatabaseEntry.from_document(document)
        if entry.version.timestamp == expected.timestamp and expected.is_older_than(entry.version):
            return
        if not entry.version.matches(expected):
            raise CommandError(
                ErrorCode.ConflictingOperationInProgress,
                f"the version of the database {name} is {entry.version}, not {expected}",
            )
        await _check_shard(transaction, to)
        transaction.put("databases", [{**document, **entry.moved_to(to, moved_at).to_document()}])

    # A shard can be removed only while it has no databases, so not during its removal.
    async with operation.committing(REMOVING_SHARDS, f"db:{name.lower()}"):
        await operation.term.catalog.transaction(work)
    logger.info("A database has another primary shard", db=name, shard=to)
    return {}


async def _check_shard(transaction: Transaction, shard_id: str) -> None:
    document = await transaction.find_one("shards", {"_id": shard_id})
    if document is None:
        raise CommandError(ErrorCode.ShardNotFound, f"Shard {shard_id} not found")
    if ShardEntry.from_document(document).is_draining:
        raise CommandError(ErrorCode.ShardNotFound, f"Shard {shard_id} is currently draining")
