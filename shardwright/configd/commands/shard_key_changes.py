"""Changes of a collection's shard key: resharding, its end, and refinement.

``_configsvrReshardCollection`` gives it another key. ``_configsvrAbortReshardCollection``, ``…Commit…`` and
``…Cleanup…`` end the operation in progress; they raise NamespaceNotFound for an unsharded collection.
``_configsvrRefineCollectionShardKey`` appends fields to the key.
"""

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any, Final
from uuid import uuid4

from bson.objectid import ObjectId

from shardwright.configd.catalog.catalog import Catalog
from shardwright.configd.catalog.chunks import (
    CollectionChunks,
    ZoneBounds,
    find_collection,
    refine_chunks,
    refine_zones,
)
from shardwright.configd.catalog.transactions import Transaction
from shardwright.configd.commands.operation import Operation
from shardwright.configd.resharding.coordinator import OperationOverError, reshard, run_operation, zone_range
from shardwright.configd.resharding.transitions import ReshardingStore
from shardwright.daemon.sidecar.command_sessions import CommandSession, execute_once
from shardwright.sharding.catalog.documents import REFINING, CollectionEntry
from shardwright.sharding.chunk_changes import is_extended_by
from shardwright.sharding.resharding_operation import ReshardingOperation
from shardwright.sharding.resharding_participation import Participation
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.wire import rawbson
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.logger import get_logger
from shardwright.wire.rawbson import decode_document, is_string, raw_document

logger = get_logger("configd.resharding")

_CHUNKS_MAX: Final = 1_000_000


async def reshard_collection(operation: Operation) -> dict[str, Any]:
    """Reshard a collection; returns after the end. A collection that has the key already does not change.

    Raises:
        CommandError: NamespaceNotSharded; BadValue, an option is not allowed; 5808201, another operation is running;
            ReshardCollectionAborted or the error for which the operation was aborted.
    """
    while True:
        try:
            await _reshard(operation)
        except OperationOverError:
            # It ended just when this request joined it. The catalog has its outcome.
            logger.info("A resharding operation ended before it was joined", namespace=str(operation.namespace))
        else:
            return {}


async def _reshard(operation: Operation) -> None:
    namespace = str(operation.namespace)
    document = await operation.term.catalog.find_by_id("collections", namespace)
    if document is None:
        raise CommandError(ErrorCode.NamespaceNotSharded, f"Collection {namespace} is not sharded.")
    entry = CollectionEntry.from_document(document)
    if entry.time_series is not None:
        raise CommandError(
            ErrorCode.NotImplemented,
            "reshardCollection command of a sharded time-series collection is not supported",
        )
    wanted = await _wanted(operation, entry)
    if wanted.participation.key.document != entry.key.document:
        await reshard(operation.term, wanted)
    else:
        await _wait_committed(operation, entry)


async def _wait_committed(operation: Operation, entry: CollectionEntry) -> None:
    """Wait for the operation that has given the collection its key, if it is still being completed."""
    active = await ReshardingStore(operation.term.catalog).active()
    if active is not None and active.id == entry.uuid:
        await run_operation(operation.term, active)


async def _wanted(operation: Operation, entry: CollectionEntry) -> ReshardingOperation:
    arguments = operation.arguments
    raw_key = arguments.raw(b"key")
    if len(raw_key) <= 5:
        raise CommandError(ErrorCode.BadValue, "Shard key is empty")
    pattern = ShardKeyPattern.from_bson(raw_key)
    if arguments.boolean(b"unique"):
        raise CommandError(ErrorCode.BadValue, "The unique field must be false")
    collation = arguments.maybe_raw(b"collation")
    if collation is not None and decode_document(collation) not in ({}, {"locale": "simple"}):
        raise CommandError(ErrorCode.BadValue, 'The collation of a shard key must be {locale: "simple"}')
    return ReshardingOperation(
        participation=Participation(
            arguments.maybe_uuid(b"reshardingUUID") or uuid4(), entry.namespace, entry.uuid, pattern, (), ()
        ),
        chunk_count=_chunk_count(operation),
        zones=await _zones(operation, pattern),
        preset_chunks=_preset(operation),
    )


def _chunk_count(operation: Operation) -> int | None:
    count = operation.arguments.maybe_integer(b"numInitialChunks")
    if count is not None and not 1 <= count <= _CHUNKS_MAX:
        raise CommandError(ErrorCode.BadValue, f"numInitialChunks must be between 1 and {_CHUNKS_MAX}")
    return count


async def _zones(operation: Operation, pattern: ShardKeyPattern) -> list[Mapping[str, Any]] | None:
    """Read the zones of the request, with full bounds.

    Raises:
        CommandError: BadValue, the collection has zones and the request has none, or a zone is incomplete or has arrays
            in its bounds; RangeOverlapConflict; ShardKeyNotFound and FailedToParse, bounds are not a range of the new
            key; InvalidOptions, they have no hash in its hashed field.
    """
    given = operation.arguments.maybe_raw_documents(b"zones")
    if given is None:
        if await operation.term.catalog.find("tags", {"ns": str(operation.namespace)}):
            raise CommandError(ErrorCode.BadValue, "Must specify value for zones field")
        return None
    zones: list[Mapping[str, Any]] = []
    for raw in given:
        zone = decode_document(raw)
        if not is_string(zone.get("zone")) or not all(isinstance(zone.get(end), dict) for end in ("min", "max")):
            raise CommandError(ErrorCode.BadValue, "A zone must have the fields zone, min and max")
        full = zone_range(pattern, zone)
        if not (pattern.is_shard_key(full.min) and pattern.is_shard_key(full.max)):
            raise CommandError(ErrorCode.BadValue, "The bounds of a zone must not have arrays as values")
        ZoneBounds.parse(full.min, full.max).check_hashes(pattern)
        zones.append({"zone": full.zone, "min": raw_document(full.min), "max": raw_document(full.max)})
    _check_disjoint(pattern, zones)
    return zones


def _check_disjoint(pattern: ShardKeyPattern, zones: list[Mapping[str, Any]]) -> None:
    ranges = sorted((pattern.key_bytes(zone["min"].raw), pattern.key_bytes(zone["max"].raw)) for zone in zones)
    for (_, high), (low, _) in pairwise(ranges):
        if low < high:
            raise CommandError(ErrorCode.RangeOverlapConflict, "Zone ranges of the new shard key overlap")


def _preset(operation: Operation) -> list[Mapping[str, Any]] | None:
    """Read the preset chunks of the request. An empty array crashes a genuine config server of MongoDB 6.0.5.

    Raises BadValue if there is none, one is incomplete, or other options are given.
    """
    given = operation.arguments.maybe_raw_documents(b"_presetReshardedChunks")
    if given is None:
        return None
    if operation.arguments.has(b"numInitialChunks"):
        raise CommandError(ErrorCode.BadValue, "numInitialChunks and _presetReshardedChunks exclude one another")
    chunks = [decode_document(each) for each in given]
    for chunk in chunks:
        is_complete = is_string(chunk.get("recipientShardId")) and {"min", "max"} <= chunk.keys()
        if not is_complete:
            raise CommandError(ErrorCode.BadValue, "A preset chunk must have the fields recipientShardId, min and max")
    if not chunks:
        raise CommandError(ErrorCode.BadValue, "_presetReshardedChunks must not be empty")
    return list(chunks)


async def abort_reshard_collection(operation: Operation) -> dict[str, Any]:
    """Abort the operation; returns after everything of it is removed.

    Raises:
        CommandError: NoSuchReshardCollection; ReshardCollectionCommitted, it was too late, and the operation has ended.
    """
    found = await _active(operation)
    if found is None or not await _end(operation, found):
        raise CommandError(
            ErrorCode.NoSuchReshardCollection,
            "Could not find resharding-related metadata that matches the given namespace",
        )
    return {}


async def commit_reshard_collection(operation: Operation) -> dict[str, Any]:
    """Block writes as soon as everything is cloned, however far the recipients are behind.

    As in MongoDB, only the caller of ``reshardCollection`` waits for the end. Raises NoSuchReshardCollection.
    """
    found = await _active(operation)
    if found is None:
        raise CommandError(
            ErrorCode.NoSuchReshardCollection, f"Could not find resharding metadata for {operation.namespace}"
        )
    operation.term.reshardings.control(found.id).commit_requested.set()
    return {}


async def cleanup_reshard_collection(operation: Operation) -> dict[str, Any]:
    """Abort the operation if there is one, or wait for its end if it is too late to abort.

    In either case its coordinator leaves nothing behind.
    """
    found = await _active(operation)
    if found is None:
        return {}
    try:
        await _end(operation, found)
    except CommandError as error:
        if error.code != ErrorCode.ReshardCollectionCommitted:
            raise
    return {}


async def _active(operation: Operation) -> ReshardingOperation | None:
    """Return the collection's operation, or None."""
    catalog, namespace = operation.term.catalog, operation.namespace
    if await catalog.find_by_id("collections", str(namespace)) is None:
        raise CommandError(ErrorCode.NamespaceNotFound, f"collection {namespace} not found")
    found = await ReshardingStore(catalog).active()
    return found if found is not None and found.namespace == namespace else None


async def _end(operation: Operation, found: ReshardingOperation) -> bool:
    """Abort an operation and wait for its end; returns False if it had ended since it was read.

    Raises:
        CommandError: ReshardCollectionCommitted, it was too late; InterruptedDueToReplStateChange.
    """
    operation.term.reshardings.control(found.id).abort()
    try:
        await run_operation(operation.term, found)
    except OperationOverError:
        return False
    except CommandError as error:
        if error.code == ErrorCode.InterruptedDueToReplStateChange:
            raise
        # It may have failed by itself at the same moment.
        logger.info("A resharding operation was aborted", namespace=str(found.namespace), error=str(error))
        return True
    raise CommandError(
        ErrorCode.ReshardCollectionCommitted, "Can't abort resharding operation after the decision has been persisted"
    )


async def refine_collection_shard_key(operation: Operation) -> dict[str, Any]:
    """Extend the key and all bounds; repeating this completes an interrupted refinement, and changes nothing else.

    A command with a session is executed once. So a late one does not refine the key after its coordinator has found it
    unrefined and given up.

    One transaction changes the collection's key, epoch and timestamp, so that shards and routers refuse their present
    versions. The bounds of zones and chunks follow one by one, because a transaction with all of them may not fit into
    the mongod's cache. Until all are extended, readers extend bounds themselves because of a mark in the entry. The
    shards that own chunks have already checked that an index supports the key.

    Raises:
        CommandError: NamespaceNotSharded; StaleEpoch, it is another collection; InvalidOptions, the key does not extend
            the present one; TransactionTooOld, the command arrives late.
    """
    namespace = str(operation.namespace)
    pattern = ShardKeyPattern.from_bson(operation.arguments.raw(b"key"))
    epoch = operation.arguments.object_id(b"epoch")
    catalog = operation.term.catalog
    new_epoch = ObjectId()

    async def work(transaction: Transaction) -> CollectionEntry | None:
        before = await _collection(transaction, namespace)
        if before.key.fields == pattern.fields:
            return None
        _check(before, epoch, pattern)
        after = replace(before, key=pattern, epoch=new_epoch, timestamp=await catalog.now())
        await _refine(transaction, before, after)
        return before

    async def refine() -> None:
        before = await catalog.transaction(work)
        if before is not None:
            details = _details(before, pattern, new_epoch)
            await operation.log_changes("refineCollectionShardKey.start", namespace, details)
        if await _refine_bounds(catalog, namespace):
            await operation.log_changes("refineCollectionShardKey.end", namespace, {})

    async with operation.committing(f"ns:{namespace}"):
        await execute_once(catalog.mongod, CommandSession.of(operation.request), refine)
    return {}


async def _collection(transaction: Transaction, namespace: str) -> CollectionEntry:
    collection = await find_collection(transaction, namespace)
    if collection is None:
        raise CommandError(ErrorCode.NamespaceNotSharded, f"Collection {namespace} is not sharded.")
    return collection


def _check(collection: CollectionEntry, epoch: ObjectId, pattern: ShardKeyPattern) -> None:
    if collection.epoch != epoch:
        raise CommandError(
            ErrorCode.StaleEpoch,
            f"refineCollectionShardKey namespace {collection.namespace} has a different epoch than mongos had in its "
            "routing table cache",
        )
    if not is_extended_by(collection.key, pattern):
        raise CommandError(
            ErrorCode.InvalidOptions,
            f"refineCollectionShardKey shard key {pattern} does not extend the current shard key {collection.key}",
        )


async def _refine(transaction: Transaction, before: CollectionEntry, after: CollectionEntry) -> None:
    document = await transaction.find_one("collections", {"_id": str(before.namespace)})
    assert document is not None
    changed = {
        "key": rawbson.raw_document(after.key.document),
        "lastmodEpoch": after.epoch,
        "timestamp": after.timestamp,
        REFINING: rawbson.raw_document(before.key.document),
    }
    await CollectionChunks(transaction, before).newest()  # commits only if no chunk has changed
    transaction.put("collections", [{**document, **changed}])


async def _refine_bounds(catalog: Catalog, namespace: str) -> bool:
    """Extend the remaining bounds, and remove the mark; returns False if there was none."""
    document = await catalog.find_by_id("collections", namespace)
    if document is None or REFINING not in document:
        return False
    entry = CollectionEntry.from_document(document)
    await refine_zones(catalog, entry)
    await refine_chunks(catalog, entry)

    async def remove_mark(transaction: Transaction) -> None:
        present = await transaction.find_one("collections", {"_id": namespace})
        if present is not None:
            transaction.put("collections", [{name: each for name, each in present.items() if name != REFINING}])

    await catalog.transaction(remove_mark)
    return True


def _details(before: CollectionEntry, pattern: ShardKeyPattern, new_epoch: ObjectId) -> dict[str, Any]:
    return {
        "oldKey": rawbson.raw_document(before.key.document),
        "newKey": rawbson.raw_document(pattern.document),
        "oldEpoch": before.epoch,
        "newEpoch": new_epoch,
    }
