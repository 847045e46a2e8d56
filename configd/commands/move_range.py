"""``_configsvrMoveRange``: have the shard that owns a range move it to another."""

from typing import Any, Final

from bson.int64 import Int64

from configd.collection_chunks import CollectionChunks, find_collection
from configd.operation import Operation
from configd.primary import Migration
from configd.ranges import parse_range
from configd.registry import config_command
from configd.transactions import Transaction
from sharding.bson_text import document_text
from sharding.catalog.collection_entry import CollectionEntry
from sharding.catalog.settings import CHUNK_SIZE_ID, ChunkSizeSettings
from sharding.catalog.shard_entry import ShardEntry
from sharding.chunks import Chunk, ChunkRange
from sharding.namespace import Namespace
from sharding.shard_key import ShardKeyPattern
from wire.error_codes import ErrorCode
from wire.errors import CommandError

_DO_NOT_FORCE: Final = 0
_FORCE_JUMBO: Final = range(3)
"""Not at all, because a person, or because the balancer wants it so."""


@config_command("_configsvrMoveRange")
async def move_range(operation: Operation) -> dict[str, Any]:
    """Find out who owns the range and send them the order; answer once the range has moved.

    One bound is enough: the other one is that of the chunk. A range that is where it should be is left there.

    Raises:
        CommandError: InvalidOptions without bounds; NamespaceNotFound; ShardNotFound; ShardKeyNotFound;
            ConflictingOperationInProgress when the collection lets no chunk move; what the shard answers.
    """
    namespace = operation.namespace
    arguments = operation.arguments
    low, high = arguments.maybe_document("min"), arguments.maybe_document("max")
    if low is None and high is None:
        raise CommandError(ErrorCode.InvalidOptions, "either min or max must be specified")
    primary = operation.primary
    recipient = await _recipient(operation, arguments.string("toShard"))

    async def resolve(transaction: Transaction) -> tuple[CollectionEntry, Chunk, ChunkRange]:
        collection = await find_collection(transaction, str(namespace))
        if collection is None:
            raise CommandError(ErrorCode.NamespaceNotFound, f"collection {namespace} not found")
        return collection, *await _resolve(CollectionChunks(transaction, collection), low, high)

    collection, chunk, wanted = await primary.catalog.transaction(resolve)
    if chunk.shard == recipient.id:
        return {}
    if not collection.may_migrate:
        raise CommandError(
            ErrorCode.ConflictingOperationInProgress,
            f"Collection {namespace} is undergoing changes and chunks cannot be moved",
        )
    donor = await primary.catalog.shard(chunk.shard)
    order = {
        "_shardsvrMoveRange": str(namespace),
        "toShard": recipient.id,
        **wanted.to_document(),
        "waitForDelete": arguments.boolean("waitForDelete", default=False),
        "epoch": collection.epoch,
        "fromShard": donor.id,
        "maxChunkSizeBytes": Int64(await _chunk_bytes_max(operation, collection)),
        "forceJumbo": arguments.enumeration("forceJumbo", _FORCE_JUMBO, _DO_NOT_FORCE),
        "secondaryThrottle": arguments.boolean("secondaryThrottle", default=False),
        "writeConcern": {"w": "majority", "wtimeout": 60_000},
    }

    async def move() -> None:
        await primary.shards.command(donor, "admin", order)

    migration = Migration(str(namespace), wanted.min_key, wanted.max_key, recipient.id)
    await primary.migrations.run(migration, move)
    return {}


async def _recipient(operation: Operation, shard_id: str) -> ShardEntry:
    try:
        return await operation.primary.catalog.shard(shard_id)
    except CommandError as error:
        if error.code != ErrorCode.ShardNotFound:
            raise
        raise CommandError(error.code, f"Could not find destination shard :: caused by :: {error.message}") from error


async def _resolve(chunks: CollectionChunks, low: bytes | None, high: bytes | None) -> tuple[Chunk, ChunkRange]:
    """The chunk in which the range begins (or, given only its end, ends), and the range with both bounds."""
    pattern, namespace = chunks.collection.key, chunks.collection.namespace
    if low is not None:
        key = _full_key(pattern, low, namespace)
        chunk = await chunks.at(key)
    else:
        assert high is not None
        key = _full_key(pattern, high, namespace)
        chunk = await chunks.before(key)
    if chunk is None:
        raise _no_target(key, namespace)
    start = chunk.min if low is None else key
    end = chunk.max if high is None else _full_key(pattern, high, namespace)
    return chunk, parse_range(pattern, start, end)


def _full_key(pattern: ShardKeyPattern, key: bytes, namespace: Namespace) -> bytes:
    full = pattern.normalize(key)
    if full is None:
        raise _no_target(key, namespace)
    return full


def _no_target(key: bytes, namespace: Namespace) -> CommandError:
    return CommandError(
        ErrorCode.ShardKeyNotFound,
        f"Cannot target single shard using key {document_text(key)} for namespace {namespace}",
    )


async def _chunk_bytes_max(operation: Operation, collection: CollectionEntry) -> int:
    if collection.max_chunk_size_bytes is not None:
        return collection.max_chunk_size_bytes
    document = await operation.primary.catalog.find_by_id("settings", CHUNK_SIZE_ID)
    return ChunkSizeSettings.from_document(document).value_bytes
