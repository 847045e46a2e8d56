"""``_configsvrMoveRange``: have the shard that owns a range move it to another."""

from typing import Any, Final

import bson
from bson.int64 import Int64

from shardwright.configd.catalog.collection_chunks import CollectionChunks, find_collection
from shardwright.configd.catalog.ranges import parse_range
from shardwright.configd.catalog.transactions import Transaction
from shardwright.configd.commands.command_registry import config_command
from shardwright.configd.commands.operation import Operation
from shardwright.sharding.bson_text import document_text
from shardwright.sharding.catalog.collection_entry import CollectionEntry
from shardwright.sharding.catalog.settings import CHUNK_SIZE_ID, ChunkSizeSettings
from shardwright.sharding.catalog.shard_entry import ShardEntry
from shardwright.sharding.chunks import Chunk
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.wire.arguments import Arguments
from shardwright.wire.error_codes import Category, ErrorCode, has_category
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import raw_document

_DO_NOT_FORCE: Final = 0
_FORCE_JUMBO: Final = range(3)
"""Not at all, because a person, or because the balancer wants it so."""

_UNTHROTTLED: Final = {"w": 1, "wtimeout": 0}


@config_command("_configsvrMoveRange")
async def move_range(operation: Operation) -> dict[str, Any]:
    """Find out who owns the range and send them the order; answer once the range has moved.

    One bound is enough. Without ``max`` the donor chooses it, so that what moves fits the chunk size; without ``min``
    the range is all of the chunk up to ``max``. A range that is where it should be is left there.

    The donor does the moving and goes on whatever becomes of this command: a request that is repeated, because this
    one was lost with its primary, joins what is under way.

    Raises:
        CommandError: InvalidOptions without bounds; NamespaceNotFound; ShardNotFound; ShardKeyNotFound;
            ConflictingOperationInProgress when the collection lets no chunk move; what the donor answers;
            HostUnreachable or FailedToSatisfyReadPreference when there is no donor to talk to.
    """
    namespace = operation.namespace
    arguments = operation.arguments
    low, high = arguments.maybe_raw(b"min"), arguments.maybe_raw(b"max")
    if low is None and high is None:
        raise CommandError(ErrorCode.InvalidOptions, "either min or max must be specified")
    primary = operation.primary
    recipient = await _recipient(operation, arguments.string(b"toShard"))

    async def resolve(transaction: Transaction) -> tuple[CollectionEntry, Chunk, dict[str, Any]]:
        collection = await find_collection(transaction, str(namespace))
        if collection is None:
            raise CommandError(ErrorCode.NamespaceNotFound, f"collection {namespace} not found")
        return collection, *await _resolve(CollectionChunks(transaction, collection), low, high)

    collection, chunk, bounds = await primary.catalog.transaction(resolve)
    if chunk.shard == recipient.id:
        return {}
    if not collection.may_migrate:
        raise CommandError(
            ErrorCode.ConflictingOperationInProgress,
            "Collection is undergoing changes so moveChunk is not allowed.",
        )
    donor = await primary.catalog.shard(chunk.shard)
    order = {
        "_shardsvrMoveRange": str(namespace),
        "toShard": recipient.id,
        **bounds,
        "waitForDelete": arguments.boolean(b"waitForDelete", default=False),
        "epoch": collection.epoch,
        "fromShard": donor.id,
        "maxChunkSizeBytes": Int64(await _chunk_bytes_max(operation, collection)),
        "forceJumbo": arguments.enumeration(b"forceJumbo", _FORCE_JUMBO, _DO_NOT_FORCE),
        **_throttle(arguments),
    }

    async def move() -> None:
        await _give_order(operation, donor, order)

    await primary.migrations.run(bson.encode(order), move)
    return {}


async def _give_order(operation: Operation, donor: ShardEntry, order: dict[str, Any]) -> None:
    try:
        await operation.primary.shards.command(donor, "admin", order)
    except CommandError as error:
        if not has_category(error.code, Category.NOT_PRIMARY):
            raise
        # As it is, the router would take it for this server's own, and look for another primary here.
        raise CommandError(
            ErrorCode.HostUnreachable, f"the primary of shard {donor.id} changed too often :: caused by :: {error}"
        ) from error


async def _recipient(operation: Operation, shard_id: str) -> ShardEntry:
    if not shard_id:
        raise CommandError(ErrorCode.NoSuchKey, "Shard ID cannot be empty")
    try:
        return await operation.primary.catalog.shard(shard_id)
    except CommandError as error:
        if error.code != ErrorCode.ShardNotFound:
            raise
        raise CommandError(error.code, f"Could not find destination shard :: caused by :: {error.message}") from error


def _throttle(arguments: Arguments) -> dict[str, Any]:
    """The write concern for the documents that the recipient writes, in the form that the donor gets.

    ``secondaryThrottle: {secondaryThrottle: bool, writeConcern?}`` says it (MongoDB's MigrationSecondaryThrottle, in
    which the field may have an underscore too); what the balancer is set to does not count for a move by hand.
    """
    given = arguments.nested(b"secondaryThrottle") if arguments.has(b"secondaryThrottle") else None
    is_on = given is not None and given.boolean(
        b"secondaryThrottle", given.boolean(b"_secondaryThrottle", default=False)
    )
    write_concern = given.maybe_raw(b"writeConcern") if given is not None and is_on else None
    return {
        "secondaryThrottle": is_on,
        "writeConcern": _UNTHROTTLED if write_concern is None else raw_document(write_concern),
    }


async def _resolve(chunks: CollectionChunks, low: bytes | None, high: bytes | None) -> tuple[Chunk, dict[str, Any]]:
    """The chunk in which the range begins (or, given only its end, ends), and the bounds that the donor is given."""
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
    if high is None:
        return chunk, {"min": raw_document(start)}
    return chunk, parse_range(pattern, start, _full_key(pattern, high, namespace)).to_document()


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
