"""Repairs of a collection's chunks.

* ``_configsvrClearJumboFlag`` makes a chunk that was too large movable again.
* ``_configsvrEnsureChunkVersionIsGreaterThan`` prevents a lost migration commit from taking effect later.
* ``_configsvrRepairShardedCollectionChunksHistory`` resets the histories of the chunks.
"""

from dataclasses import replace
from functools import partial
from typing import Any, Final

from bson.binary import Binary
from bson.timestamp import Timestamp

from shardwright.configd.catalog.chunks import CollectionChunks, find_collection
from shardwright.configd.catalog.transactions import Transaction
from shardwright.configd.commands.operation import Operation
from shardwright.configd.term.donor_requests import refresh_shards
from shardwright.sharding.arguments import chunk_version, named_in_full
from shardwright.sharding.catalog.collection_entry import CollectionEntry
from shardwright.sharding.chunk_changes import clear_jumbo, ensure_version_is_greater_than
from shardwright.sharding.chunks import Chunk, ChunkHistory, ChunkRange
from shardwright.sharding.clock import CLUSTER_TIME
from shardwright.sharding.namespace import Namespace
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError


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
