"""Commits of collection changes: create, drop, rename, modify, and allow or forbid migrations.

The catalog changes after all shards have created or renamed a collection, and while all shards are dropping one.
``_configsvrCollMod`` changes the catalog's options of a time-series collection.
"""

from collections.abc import Awaitable
from functools import partial
from typing import Any
from uuid import UUID

from bson.binary import Binary
from bson.objectid import ObjectId

from shardwright.configd.balancer.commands_scheduler import refresh_shards
from shardwright.configd.catalog.chunks import CollectionChunks, find_collection, finish_renames, marked
from shardwright.configd.catalog.transactions import Transaction, check_shard_exists
from shardwright.configd.commands.operation import Operation
from shardwright.daemon.sidecar.command_sessions import CommandSession, execute_once
from shardwright.sharding.catalog.documents import CollectionEntry, TagEntry
from shardwright.sharding.chunk_changes import bump_each_shard, bump_minor, check_bounds_fit
from shardwright.sharding.chunks import ChunkPlacement
from shardwright.sharding.document_fields import required_uuid
from shardwright.sharding.namespace import Namespace, own_collection
from shardwright.sharding.routing_table import RoutingTable
from shardwright.sharding.time_series import GRANULARITIES, TimeSeriesFields, is_coarser
from shardwright.wire.arguments import Arguments
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import decode_document, raw_document


async def commit_create_collection(operation: Operation) -> dict[str, Any]:
    """Add the collection with its first chunks; repeating this for the same collection changes nothing.

    A command with a session is executed once, so that a late one does not add a collection that has been dropped since.

    Raises:
        CommandError: AlreadyInitialized, another collection of that name is sharded; ShardNotFound, an owner of chunks
            has been removed; InvalidOptions, a zone does not fit the shard key; BSONObjectTooLarge, the bounds of a
            chunk are too large; TransactionTooOld, the command comes late; NoSuchKey, TypeMismatch, BadValue or
            ConflictingOperationInProgress, the documents are not a valid catalog.
    """
    namespace = operation.namespace
    arguments = operation.arguments
    document = arguments.raw(b"collection")
    decoded = decode_document(document)
    collection = CollectionEntry.from_document(decoded)
    if collection.namespace != namespace:
        raise CommandError(ErrorCode.BadValue, f"The entry of {collection.namespace} was sent for {namespace}")
    chunks = operation.request.documents(b"chunks")
    # Building a table fails unless the chunks cover the whole key space exactly once.
    placements = [ChunkPlacement.from_raw(chunk) for chunk in chunks]
    RoutingTable.build(collection.sharded_collection(), placements)
    for placement in placements:
        check_bounds_fit(placement.min, placement.max)
    owners = sorted({placement.shard for placement in placements})

    async def work(transaction: Transaction, *, is_prepared: bool) -> bool:
        existing = await find_collection(transaction, str(namespace))
        if existing is not None:
            if existing.uuid != collection.uuid:
                raise CommandError(
                    ErrorCode.AlreadyInitialized,
                    f"{namespace} is sharded already, with UUID {existing.uuid} instead of {collection.uuid}",
                )
            return True
        for owner in owners:
            await check_shard_exists(transaction, owner)
        for tag in await transaction.find("tags", {"ns": str(namespace)}):  # zones may have been added since
            TagEntry.from_document(tag).check_fits(collection.key)
        if is_prepared:
            transaction.put("collections", [decoded])
        return False

    async def create() -> None:
        if await catalog.transaction(partial(work, is_prepared=False)):
            return
        # Chunks have no meaning until the collection's entry exists. An interrupted attempt may have left some.
        await catalog.replace_chunks(mine["uuid"], [raw_document(chunk) for chunk in chunks])
        try:
            await catalog.transaction(partial(work, is_prepared=True))
        except CommandError as error:
            if error.code in (ErrorCode.ShardNotFound, ErrorCode.InvalidOptions):
                # They would block the removal of the other shards forever.
                await catalog.delete("chunks", mine)
            raise

    catalog = operation.term.catalog
    mine = {"uuid": Binary.from_uuid(collection.uuid)}
    async with operation.committing(f"ns:{namespace}", "zones"):
        await execute_once(catalog.mongod, CommandSession.of(operation.request), create)
    return {}


async def commit_drop_collection(operation: Operation) -> dict[str, Any]:
    """Remove the collection's zone ranges, then its entry, then its chunks, which have no reference then.

    Zones are deleted one by one, because there may be any number. They go before the entry, which identifies their
    collection. Repeating this changes nothing: another collection of that name and its zone ranges are kept.
    """
    namespace = str(operation.namespace)
    uuid = operation.arguments.nested(b"collectionUUID").uuid(b"uuid")

    async def work(transaction: Transaction) -> None:
        collection = await find_collection(transaction, namespace)
        if collection is not None and collection.uuid == uuid:
            transaction.delete("collections", [namespace])

    catalog = operation.term.catalog
    async with operation.committing(f"ns:{namespace}"):
        document = await catalog.find_by_id("collections", namespace)
        if document is not None and CollectionEntry.from_document(document).uuid == uuid:
            await catalog.delete("tags", {"ns": namespace})
        await catalog.transaction(work)
        await catalog.delete("chunks", {"uuid": Binary.from_uuid(uuid)})
    return {}


async def rename_collection_metadata(operation: Operation) -> dict[str, Any]:
    """Rename a collection's entry and zones, replacing the target; repeating this changes nothing.

    A command with a session is executed once. So a late one does not rename a collection that has got its old name back
    since, nor delete zones that have been added since.

    The collection keeps its UUID and its chunks, and gets another epoch and timestamp. Its migrations, which the
    coordinator has forbidden, are allowed again after its zones have followed. Without ``optFromCollection`` the source
    is unsharded. Then only the target is removed, and zones of the old name stay, as in MongoDB. ``targetUUID`` is the
    UUID of a sharded target. If neither collection is sharded, the command only records a rename that has been made.
    A user may have added zones for the new name since, so they are kept.

    Raises:
        CommandError: ConflictingOperationInProgress, another collection has the old or the new name; TransactionTooOld,
            the command comes late.
    """
    source, arguments = str(operation.namespace), operation.arguments
    target = str(Namespace.parse_collection(arguments.string(b"to")))
    uuid = arguments.nested(b"optFromCollection").uuid(b"uuid") if _has(operation, b"optFromCollection") else None
    replaced = arguments.maybe_uuid(b"targetUUID")
    catalog = operation.term.catalog
    epoch = ObjectId()

    async def work(transaction: Transaction) -> None:
        existing = await find_collection(transaction, target)
        if existing is not None and existing.uuid == uuid:
            return
        _check_is_replaced(existing, replaced)
        document = await transaction.find_one("collections", {"_id": source})
        if uuid is not None and document is not None:
            if required_uuid(document, "uuid") != uuid:
                raise _conflict(source, required_uuid(document, "uuid"))
            incarnation = {"_id": target, "lastmodEpoch": epoch, "timestamp": await catalog.now()}
            transaction.delete("collections", [source])
            transaction.put("collections", [await marked(transaction, {**document, **incarnation}, source)])
        elif existing is not None:
            transaction.delete("collections", [target])

    async def delete_replaced_zones() -> None:
        document = await catalog.find_by_id("collections", target)
        existing = None if document is None else CollectionEntry.from_document(document)
        if existing is None or existing.uuid != uuid:  # otherwise the zones already belong to the source
            _check_is_replaced(existing, replaced)
            await catalog.delete("tags", {"ns": target})

    async def rename() -> None:
        if uuid is not None or replaced is not None:
            await delete_replaced_zones()
        await catalog.transaction(work)
        await finish_renames(catalog, target)
        if replaced is not None:
            await catalog.delete("chunks", {"uuid": Binary.from_uuid(replaced)})
        await _log(operation, target, is_sharded=uuid is not None)

    async with operation.committing(f"ns:{source}", f"ns:{target}", "zones"):
        await execute_once(catalog.mongod, CommandSession.of(operation.request), rename)
    return {}


async def _log(operation: Operation, target: str, *, is_sharded: bool) -> None:
    """Record the rename as MongoDB does: without a namespace, and with the fate of both collections in the details."""
    done = (
        ": dropped target collection and renamed source collection" if is_sharded else " : dropped target collection."
    )
    entry = await operation.term.catalog.find_by_id("collections", target) if is_sharded else None
    details = {} if entry is None else {"newCollMetadata": entry}
    what = f"admin.{operation.namespace.collection} to {target}{done}"
    await operation.log_changes("renameCollection.metadata", what, details)


def _has(operation: Operation, field: bytes) -> bool:
    return field in operation.request.fields


def _check_is_replaced(existing: CollectionEntry | None, replaced: UUID | None) -> None:
    if existing is not None and existing.uuid != replaced:
        raise _conflict(str(existing.namespace), existing.uuid)


def _conflict(namespace: str, uuid: UUID) -> CommandError:
    return CommandError(
        ErrorCode.ConflictingOperationInProgress, f"{namespace} is another collection, with UUID {uuid}"
    )


async def coll_mod(operation: Operation) -> dict[str, Any]:
    """Make the granularity of a collection of buckets coarser, with new versions for all owners of chunks.

    The command runs on the collection's database, as in MongoDB. A repeated request changes nothing, even after later
    ones. Other options change nothing either, because the catalog does not hold them. A command with a session is
    executed once, so that a late one does not change a collection that has been created since.

    Raises:
        CommandError: NamespaceNotSharded; InvalidOptions, it holds no buckets; BadValue, it is not a granularity;
            TransactionTooOld, the command arrives late.
    """
    namespace = str(own_collection(operation.request))
    granularity = _granularity(operation.arguments.nested(b"collModRequest"))

    async def work(transaction: Transaction) -> None:
        document = await transaction.find_one("collections", {"_id": namespace})
        if document is None:
            raise CommandError(ErrorCode.NamespaceNotSharded, f"Collection {namespace} is not sharded.")
        collection = CollectionEntry.from_document(document)
        if granularity is not None and is_coarser(granularity, _fields(collection).granularity):
            changed = _fields(collection).with_granularity(granularity)
            transaction.put("collections", [{**document, "timeseriesFields": changed.to_document()}])
            chunks = CollectionChunks(transaction, collection)
            chunks.write(bump_each_shard(await chunks.first_of_each_owner(), await chunks.version()))

    catalog = operation.term.catalog
    async with operation.committing(f"ns:{namespace}"):
        change = partial(catalog.transaction, work)
        await execute_once(catalog.mongod, CommandSession.of(operation.request), change)
    return {}


def _granularity(change: Arguments) -> str | None:
    options = change.maybe_nested(b"timeseries")
    granularity = None if options is None else options.maybe_string(b"granularity")
    if granularity is not None and granularity not in GRANULARITIES:
        raise CommandError(
            ErrorCode.BadValue,
            f"Enumeration value '{granularity}' for field '_configsvrCollMod.collModRequest.timeseries.granularity' is "
            "not a valid value.",
        )
    return granularity


def _fields(collection: CollectionEntry) -> TimeSeriesFields:
    if collection.time_series is None:
        raise CommandError(ErrorCode.InvalidOptions, f"Collection {collection.namespace} holds no buckets.")
    return collection.time_series


async def set_allow_migrations(operation: Operation) -> dict[str, Any]:
    """Forbid migrations of a collection, or allow them again; returns after the owners of chunks have refreshed.

    A donor whose migration is now forbidden aborts it at the refresh, unless it has reached the commit. The commit is
    refused. A command with a session is executed once, so that a late one does not undo a later one. A refused command
    counts too: it comes after all earlier commands of its session about the collection, or prevents them.

    Raises:
        CommandError: NamespaceNotSharded, InvalidUUID; TransactionTooOld, the command comes late; a shard's error, in
            which case the change itself has been made.
    """
    namespace = operation.namespace
    allow = operation.arguments.boolean(b"allowMigrations", default=True)
    uuid = operation.arguments.maybe_uuid(b"collectionUUID")

    async def work(transaction: Transaction, *, is_executed: bool) -> list[str]:
        document = await transaction.find_one("collections", {"_id": str(namespace)})
        if document is None:
            raise CommandError(ErrorCode.NamespaceNotSharded, f"Collection {namespace} is not sharded.")
        collection = CollectionEntry.from_document(document)
        if uuid is not None and uuid != collection.uuid:
            raise CommandError(
                ErrorCode.InvalidUUID,
                f"Collection uuid {uuid} in the request does not match the current uuid {collection.uuid} for ns"
                f" {namespace}",
            )
        chunks = CollectionChunks(transaction, collection)
        if is_executed:
            return await chunks.owners()
        changed = {name: value for name, value in document.items() if name != "allowMigrations"}
        transaction.put("collections", [changed if allow else {**changed, "allowMigrations": False}])
        chunks.write(bump_minor(await chunks.newest()))
        return await chunks.owners()

    catalog, session = operation.term.catalog, CommandSession.of(operation.request)
    async with operation.committing(f"ns:{namespace}"):
        is_executed = session is not None and await session.is_executed(catalog.mongod)
        owners = await _or_refusal(catalog.transaction(partial(work, is_executed=is_executed)))
        if session is not None and not is_executed:
            await session.record(catalog.mongod)
    if isinstance(owners, CommandError):
        raise owners
    await refresh_shards(operation.term, str(namespace), owners)
    return {}


async def _or_refusal(owners: Awaitable[list[str]]) -> list[str] | CommandError:
    try:
        return await owners
    except CommandError as error:
        if error.code not in (ErrorCode.NamespaceNotSharded, ErrorCode.InvalidUUID):
            raise
        return error
