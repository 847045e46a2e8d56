"""Commits of chunk changes, and repairs of a collection's chunks.

A migration, a split, and a merge of a range's chunks are committed by ``_configsvrCommitChunkMigration``, ``…Split``
and ``_configsvrCommitChunksMerge``.

* ``_configsvrClearJumboFlag`` makes a chunk that was too large movable again.
* ``_configsvrEnsureChunkVersionIsGreaterThan`` prevents a lost migration commit from taking effect later.
* ``_configsvrRepairShardedCollectionChunksHistory`` resets the histories of the chunks.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from bson.binary import Binary
from bson.objectid import ObjectId
from bson.timestamp import Timestamp

from shardwright.configd.balancer.commands_scheduler import refresh_shards
from shardwright.configd.catalog.chunks import CollectionChunks, bounds_document, find_collection, parse_range
from shardwright.configd.catalog.transactions import Transaction, check_shard_exists
from shardwright.configd.commands.operation import Operation
from shardwright.sharding.bson_text import document_text
from shardwright.sharding.catalog.documents import CollectionEntry
from shardwright.sharding.chunk_changes import (
    ChunkChanges,
    Migration,
    clear_jumbo,
    ensure_version_is_greater_than,
    merge,
    move,
    split,
)
from shardwright.sharding.chunks import Chunk, ChunkHistory, ChunkRange
from shardwright.sharding.clock import CLUSTER_TIME
from shardwright.sharding.namespace import Namespace, chunk_version, named_in_full
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.sharding.versions import ChunkVersion
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import decode_document


async def commit_chunk_migration(operation: Operation) -> dict[str, Any]:
    """Change the owner of a range, a whole chunk or part of one; a repeated commit is confirmed.

    Raises:
        CommandError: StaleEpoch; ConflictingOperationInProgress, the collection is gone, does not allow migrations, or
            the chunk has changed since the donor read it; ShardNotFound; 40165, no chunk contains the range; 4914702,
            it is on neither shard; IncompatibleShardingMetadata.
    """
    namespace = str(operation.namespace)
    arguments = operation.arguments
    from_shard, to_shard = arguments.string(b"fromShard"), arguments.string(b"toShard")
    valid_after = arguments.timestamp(b"validAfter")
    donor_version = chunk_version(arguments, b"fromShardCollectionVersion")
    chunk = arguments.nested(b"migratedChunk")
    low, high, version = chunk.raw(b"min"), chunk.raw(b"max"), chunk_version(chunk, b"lastmod")
    window_seconds = await operation.term.catalog.snapshot_window_seconds()

    async def work(transaction: Transaction) -> tuple[ChunkVersion, ChunkVersion]:
        await check_shard_exists(transaction, to_shard)
        collection = await find_collection(transaction, namespace)
        if collection is None:
            raise CommandError(ErrorCode.ConflictingOperationInProgress, "Collection does not exist")
        _check_collection(collection, donor_version, f"[{document_text(low)}, {document_text(high)})")
        chunks = CollectionChunks(transaction, collection)
        before = await chunks.version()
        migration = Migration(
            moved=parse_range(collection.key, low, high),
            version=version,
            from_shard=from_shard,
            to_shard=to_shard,
            valid_after=valid_after,
            history_from=Timestamp(max(valid_after.time - window_seconds, 0), 0),
        )
        current = await chunks.at(low)
        changes = move(
            migration,
            current,
            control=None if current is None else await chunks.control_chunk(current),
            pattern=collection.key,
            collection_version=before,
            new_id=ObjectId,
        )
        chunks.write(changes)
        return changes.collection_version(before), await chunks.shard_version_after(from_shard, changes)

    async with operation.term.locks.hold(f"ns:{namespace}"):
        collection_version, shard_version = await operation.term.catalog.transaction(work)
    return {"collectionVersion": collection_version.to_document(), "shardVersion": shard_version.to_document()}


def _check_collection(collection: CollectionEntry, donor_version: ChunkVersion, migrated: str) -> None:
    """Refuse the migration if the collection was recreated or does not allow migrations."""
    if collection.epoch != donor_version.epoch or collection.timestamp != donor_version.timestamp:
        raise CommandError(
            ErrorCode.StaleEpoch,
            f"The epoch of collection '{collection.namespace}' has changed since the migration began. The config"
            f" server's collection version epoch is now '{collection.epoch}', but the shard's is"
            f" {donor_version.epoch}'. Aborting migration commit for chunk ({migrated}).",
        )
    if not collection.may_migrate:
        raise CommandError(
            ErrorCode.ConflictingOperationInProgress, "Collection is undergoing changes and chunks cannot be moved"
        )


async def commit_chunk_split(operation: Operation) -> dict[str, Any]:
    """Split a chunk at the given points; a repeated split is confirmed.

    Raises:
        CommandError: StaleEpoch; ConflictingOperationInProgress, the collection is gone; BadValue, the shard does not
            own such a chunk; InvalidOptions, the points do not split it.
    """
    namespace = str(operation.namespace)
    arguments = operation.arguments
    epoch, shard = arguments.object_id(b"collEpoch"), arguments.string(b"shard")
    low, high = arguments.raw(b"min"), arguments.raw(b"max")
    points = arguments.raw_documents(b"splitPoints")

    async def work(transaction: Transaction) -> tuple[dict[str, Any], Chunk | None, ChunkChanges, ChunkVersion]:
        chunks = await _chunks_of(transaction, namespace, epoch, low, high)
        wanted = ChunkRange.of(chunks.collection.key, low, high)
        before = await chunks.version()
        whole = await chunks.exactly(wanted)
        if whole is None or whole.shard != shard:
            parts = await chunks.overlapping(wanted)
            if not _is_split_already(parts, wanted, points, shard, chunks.collection.key):
                raise CommandError(
                    ErrorCode.BadValue,
                    f"chunk operation commit failed: shard {shard} owns no chunk {wanted} of {namespace}",
                )
            changes = ChunkChanges()
        else:
            changes = split(whole, points, pattern=chunks.collection.key, collection_version=before, new_id=ObjectId)
            chunks.write(changes)
        reply = {
            "collectionVersion": changes.collection_version(before).to_document(),
            "shardVersion": (await chunks.shard_version_after(shard, changes)).to_document(),
        }
        return reply, whole, changes, before

    async with operation.committing(f"ns:{namespace}"):
        reply, whole, changes, before = await operation.term.catalog.transaction(work)
        if whole is not None:
            await _log(operation, namespace, whole, changes.written, before)
    return reply


async def _chunks_of(
    transaction: Transaction, namespace: str, epoch: ObjectId, low: bytes, high: bytes
) -> CollectionChunks:
    collection = await find_collection(transaction, namespace)
    if collection is None:
        raise CommandError(ErrorCode.ConflictingOperationInProgress, "Collection does not exist")
    if collection.epoch != epoch:
        raise CommandError(
            ErrorCode.StaleEpoch,
            f"splitChunk cannot split chunk [{document_text(low)}, {document_text(high)}). Epoch of collection"
            f" '{namespace}' has changed. Current epoch: {collection.epoch}, cmd epoch: {epoch}",
        )
    return CollectionChunks(transaction, collection)


def _is_split_already(
    parts: Sequence[Chunk], wanted: ChunkRange, points: Sequence[bytes], shard: str, pattern: ShardKeyPattern
) -> bool:
    """Whether the shard's chunks begin and end at exactly the requested points."""
    ranges = [part.range(pattern) for part in parts]
    begins = [wanted.min_key, *(pattern.key_bytes(point) for point in points)]
    return (
        [each.min_key for each in ranges] == begins
        and ranges[-1].max_key == wanted.max_key
        and all(part.shard == shard for part in parts)
    )


async def _log(
    operation: Operation, namespace: str, whole: Chunk, parts: Sequence[Chunk], before: ChunkVersion
) -> None:
    """Write one entry for a split in two, else one per part; ``before`` is the collection version, as in MongoDB."""
    whole_before, owner = bounds_document(whole, before), {"owningShard": whole.shard}
    if len(parts) == 2:
        left, right = map(bounds_document, parts)
        await operation.log_changes("split", namespace, {"before": whole_before, "left": left, "right": right, **owner})
        return
    await operation.log_changes(
        "multi-split",
        namespace,
        *(
            {"before": whole_before, "number": number, "of": len(parts), "chunk": bounds_document(part), **owner}
            for number, part in enumerate(parts, start=1)
        ),
    )


async def commit_chunks_merge(operation: Operation) -> dict[str, Any]:
    """Merge the chunks of a range on one shard; if there is only one already, nothing changes.

    ``validAfter`` is ignored, as in MongoDB 6.0.5: the history of the chunks is more accurate (see `merge`).

    Raises:
        CommandError: StaleEpoch, InvalidUUID; ConflictingOperationInProgress, the collection is gone; IllegalOperation,
            the chunks do not cover the range exactly.
    """
    namespace = str(operation.namespace)
    arguments = operation.arguments
    shard, uuid = arguments.string(b"shard"), arguments.nested(b"collUUID").uuid(b"uuid")
    epoch, timestamp = arguments.object_id(b"epoch"), arguments.timestamp(b"timestamp")
    bounds = arguments.nested(b"chunkRange")
    low, high = bounds.raw(b"min"), bounds.raw(b"max")

    async def work(transaction: Transaction) -> tuple[ChunkVersion, ChunkChanges, ChunkVersion, ChunkRange]:
        collection = await find_collection(transaction, namespace)
        if collection is None:
            raise CommandError(ErrorCode.ConflictingOperationInProgress, "Collection does not exist")
        if collection.uuid != uuid:
            raise CommandError(
                ErrorCode.InvalidUUID,
                f"UUID of collection does not match UUID of request. Collection UUID: {collection.uuid}, request UUID:"
                f" {uuid}",
            )
        if collection.epoch != epoch or collection.timestamp != timestamp:
            raise CommandError(ErrorCode.StaleEpoch, "Collection changed")
        merged = parse_range(collection.key, low, high)
        chunks = CollectionChunks(transaction, collection)
        before = await chunks.version()
        changes = merge(
            await chunks.overlapping(merged),
            merged,
            shard=shard,
            pattern=collection.key,
            collection_version=before,
        )
        chunks.write(changes)
        return await chunks.shard_version_after(shard, changes), changes, before, merged

    async with operation.committing(f"ns:{namespace}"):
        version, changes, before, merged = await operation.term.catalog.transaction(work)
        for whole in changes.written:
            details = {
                "prevShardVersion": before.to_document(),
                "mergedVersion": whole.version.to_document(),
                "owningShard": shard,
                "min": decode_document(merged.min),
                "max": decode_document(merged.max),
                "numChunks": len(changes.deleted) + 1,
            }
            await operation.log_changes("merge", namespace, details)
    return {"shardVersion": version.to_document()}


async def clear_jumbo_flag(operation: Operation) -> dict[str, Any]:
    """Make a chunk that was too large movable again.

    Raises:
        CommandError: NamespaceNotSharded, StaleEpoch; 51262, there is no such chunk.
    """
    namespace = operation.namespace
    arguments = operation.arguments
    epoch = arguments.object_id(b"epoch")
    low, high = arguments.raw(b"minKey"), arguments.raw(b"maxKey")

    async def work(transaction: Transaction) -> None:
        collection = await find_collection(transaction, str(namespace))
        if collection is None:
            raise CommandError(ErrorCode.NamespaceNotSharded, f"clearJumboFlag namespace {namespace} is not sharded")
        if collection.epoch != epoch:
            raise CommandError(
                ErrorCode.StaleEpoch,
                f"clearJumboFlag namespace {namespace} has a different epoch than mongos had in its routing table"
                " cache",
            )
        chunks = CollectionChunks(transaction, collection)
        encode = collection.key.key_bytes
        wanted = ChunkRange(low, high, encode(low), encode(high))
        chunks.write(
            clear_jumbo(
                await chunks.exactly(wanted),
                wanted,
                namespace=namespace,
                collection_version=await chunks.version(),
            )
        )

    names = (namespace.db, str(namespace))
    async with (
        operation.term.shown_locks.shown(names, "conn", "clearJumboFlag"),
        operation.term.locks.hold(f"ns:{namespace}"),
    ):
        await operation.term.catalog.transaction(work)
    return {}


async def ensure_chunk_version_is_greater_than(operation: Operation) -> dict[str, Any]:
    """Prevent a migration that tried to commit at a given version from being committed later.

    A collection or chunk that does not exist any more counts as changed, so nothing is done. The UUID identifies the
    collection, whatever its present name.
    """
    arguments = operation.arguments
    # In MongoDB 6.0 the command's own field has always been a number, and the namespace a separate field.
    text = arguments.string(b"nss") if arguments.has(b"nss") else operation.subject
    namespace = Namespace.parse_collection(text)
    low, high = arguments.raw(b"minKey"), arguments.raw(b"maxKey")
    version, uuid = chunk_version(arguments, b"version"), arguments.maybe_uuid(b"collectionUUID")

    async def work(transaction: Transaction) -> None:
        query = {"_id": str(namespace)} if uuid is None else {"uuid": Binary.from_uuid(uuid)}
        document = await transaction.find_one("collections", query)
        if document is None:
            return
        collection = CollectionEntry.from_document(document)
        if collection.epoch != version.epoch:
            return
        chunks = CollectionChunks(transaction, collection)
        chunk = await chunks.exactly(ChunkRange.of(collection.key, low, high))
        chunks.write(ensure_version_is_greater_than(chunk, version, collection_version=await chunks.version()))

    async with operation.term.locks.hold(f"ns:{namespace}"):
        await operation.term.catalog.transaction(work)
    return {}


CHUNKS_PER_STEP: Final = 10_000
"""Limit that keeps the ``applyOps`` of one step far below 16 MB."""

MARKED_WITHOUT_HISTORY: Final = 5760504
"""MongoDB's code for a marked chunk without a history."""

_MARK: Final = "historyIsAt40"
"""The field of chunks whose history is known to be sound, named after the version that introduced histories."""


async def repair_sharded_collection_chunks_history(operation: Operation) -> dict[str, Any]:
    """Give each unmarked chunk a history that begins now with its present owner, and mark it.

    Snapshot reads of earlier times then fail with StaleChunkHistory. Each step is a transaction with its own major
    version, so a command that is repeated after a failure continues. With ``force``, which removes all marks, it starts
    from the beginning.

    Raises:
        CommandError: NamespaceNotFound; 5760504, a marked chunk has no history; a shard's error, in which case the
            chunks have been repaired.
    """
    namespace, primary = named_in_full(operation.request), operation.term
    async with primary.locks.hold(f"ns:{namespace}"):
        if operation.arguments.value(b"force") is True:
            collection = await primary.catalog.transaction(partial(_existing, namespace=namespace))
            of_collection = {"uuid": Binary.from_uuid(collection.uuid)}
            await primary.catalog.update_many("chunks", of_collection, {"$unset": {_MARK: ""}})
        # At or after the client's time, so that its earlier snapshots are recognized as earlier.
        valid_after = await primary.catalog.now(operation.request.get(CLUSTER_TIME))
        step = partial(_repair_some, namespace=namespace, valid_after=valid_after)
        owners = set[str]()
        while repaired := await primary.catalog.transaction(step):
            owners.update(chunk.shard for chunk in repaired)
    await refresh_shards(primary, str(namespace), owners)
    return {}


async def _existing(transaction: Transaction, *, namespace: Namespace) -> CollectionEntry:
    collection = await find_collection(transaction, str(namespace))
    if collection is None:
        raise CommandError(ErrorCode.NamespaceNotFound, "Collection does not exist")
    return collection


async def _repair_some(transaction: Transaction, *, namespace: Namespace, valid_after: Timestamp) -> list[Chunk]:
    """Repair up to `CHUNKS_PER_STEP` chunks and return them; none if all have their marks."""
    collection = await _existing(transaction, namespace=namespace)
    chunks = CollectionChunks(transaction, collection)
    version = (await chunks.version()).with_major_raised()
    repaired = [
        replace(
            chunk,
            version=version.with_minor_raised(number),
            history=(ChunkHistory(valid_after, chunk.shard),),
        )
        for number, chunk in enumerate(await chunks.some({_MARK: {"$ne": True}}, CHUNKS_PER_STEP))
    ]
    transaction.put("chunks", ({**chunk.to_document(), _MARK: True} for chunk in repaired))
    if not repaired and (damaged := await chunks.some({"history.0": {"$exists": False}}, 1)):
        raise CommandError(
            MARKED_WITHOUT_HISTORY,
            f"Chunk {damaged[0].id} in collection {namespace} indicates that it has been upgraded to version 4.0, but"
            " is missing the history field. This indicates a corrupted routing table and requires a manual intervention"
            " to be fixed.",
        )
    return repaired
