"""Requests to move a chunk: ``_configsvrMoveRange`` to a given shard, and ``_configsvrMoveChunk`` to a chosen one.

A donor sends the second after it has split a chunk that keeps growing at one end.
"""

from typing import Any, Final

from bson.int64 import Int64

from shardwright.configd.balancer.balancer import answers_for, shown
from shardwright.configd.balancer.cluster_view import UNTHROTTLED, Configuration, read_view
from shardwright.configd.balancer.commands_scheduler import chunk_bytes_default, move, request_move
from shardwright.configd.catalog.chunks import CollectionChunks, find_collection, parse_range
from shardwright.configd.catalog.transactions import Transaction
from shardwright.configd.commands.operation import Operation
from shardwright.sharding.balancing.cluster_state import Candidate
from shardwright.sharding.balancing.policy import place_offered
from shardwright.sharding.bson_text import document_text
from shardwright.sharding.catalog.documents import CollectionEntry, ShardEntry
from shardwright.sharding.chunks import Chunk, ChunkRange
from shardwright.sharding.namespace import Namespace, secondary_throttle
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.wire.arguments import Arguments
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.logger import get_logger
from shardwright.wire.rawbson import EMPTY_DOCUMENT, raw_document

logger = get_logger("configd.balancer")


async def move_chunk(operation: Operation) -> dict[str, Any]:
    """Move a chunk to the shard with the least data of its collection, if that is another one and the balancer is on.

    A chunk that has changed since the request stays where it is.

    Raises:
        CommandError: CommandNotSupported, the request names a recipient, which only ``_configsvrMoveRange`` supports;
            NamespaceNotFound; the donor's error.
    """
    arguments, primary = operation.arguments, operation.term
    if arguments.has(b"toShard"):
        raise CommandError(ErrorCode.CommandNotSupported, "_configsvrMoveChunk with toShard is not supported")
    namespace = Namespace.parse_collection(arguments.string(b"ns"))
    configuration = await Configuration().reread(primary.catalog)
    offered = await _offered(operation, namespace)
    view = await read_view(primary, configuration, str(namespace))
    if offered is None or not view.collections or not configuration.is_valid or configuration.balancer.mode == "off":
        return {}
    collection = view.collections[0]
    if collection.zones.bounds_inside(offered.range):
        return {}
    decided = await answers_for(primary, view).drive(place_offered(view.cluster, collection, offered))
    if decided is not None:
        logger.info("Moving the hot end of a collection", **shown(decided.to_document()))
        await move(primary, view, configuration, decided)
    return {}


async def _offered(operation: Operation, namespace: Namespace) -> Candidate | None:
    """Return the chunk of the request; None if its bounds or its owner have changed."""
    arguments = operation.arguments
    low, high, shard = arguments.raw(b"min"), arguments.raw(b"max"), arguments.string(b"shard")
    epoch = arguments.object_id(b"lastmodEpoch")

    async def work(transaction: Transaction) -> Candidate | None:
        collection = await find_collection(transaction, str(namespace))
        if collection is None:
            raise CommandError(ErrorCode.NamespaceNotFound, f"collection {namespace} not found")
        bounds = ChunkRange.of(collection.key, low, high)
        chunk = await CollectionChunks(transaction, collection).exactly(bounds)
        if chunk is None or chunk.shard != shard or chunk.jumbo or collection.epoch != epoch:
            return None
        return Candidate(bounds, shard)

    return await operation.term.catalog.transaction(work)


_DO_NOT_FORCE: Final = 0
_FORCE_JUMBO: Final = range(3)
"""Values of ``forceJumbo``: do not force, force manually, force for the balancer."""

_NOT_AN_OBJECT: Final = 10065


async def move_range(operation: Operation) -> dict[str, Any]:
    """Find the owner of the range and send it the request; return after the range has moved.

    One bound is enough. Without ``max``, the donor chooses it so that the moved part fits the chunk size. Without
    ``min``, the range is the whole chunk up to ``max``. If the range is already on the recipient, nothing happens.

    The donor continues even if this command ends. If the request is repeated after a failover, it joins the active
    migration.

    Raises:
        CommandError: InvalidOptions, there are no bounds; NamespaceNotFound; ShardNotFound; ShardKeyNotFound;
            ConflictingOperationInProgress, the collection does not allow migrations; the donor's error; HostUnreachable
            or FailedToSatisfyReadPreference, the donor cannot be reached.
    """
    namespace = operation.namespace
    arguments = operation.arguments
    low, high = arguments.maybe_raw(b"min"), arguments.maybe_raw(b"max")
    if low is None and high is None:
        raise CommandError(ErrorCode.InvalidOptions, "either min or max must be specified")
    primary = operation.term
    recipient = await _recipient(operation, arguments.string(b"toShard"))

    async def resolve(transaction: Transaction) -> tuple[CollectionEntry, Chunk, dict[str, Any]]:
        collection = await find_collection(transaction, str(namespace))
        if collection is None:
            raise CommandError(ErrorCode.NamespaceNotFound, f"collection {namespace} not found")
        return collection, *await _resolve(CollectionChunks(transaction, collection), low, high)

    collection, chunk, bounds = await primary.catalog.transaction(resolve)
    if chunk.shard == recipient.id:
        return {}
    if recipient.is_draining:
        raise CommandError(ErrorCode.ShardNotFound, f"Shard {recipient.id} is currently draining")
    if not collection.may_migrate:
        raise CommandError(
            ErrorCode.ConflictingOperationInProgress,
            "Collection is undergoing changes so moveChunk is not allowed.",
        )
    donor = await primary.catalog.shard(chunk.shard)
    request = {
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
    await request_move(primary, donor, request)
    return {}


async def _recipient(operation: Operation, shard_id: str) -> ShardEntry:
    if not shard_id:
        raise CommandError(ErrorCode.NoSuchKey, "Shard ID cannot be empty")
    try:
        return await operation.term.catalog.shard(shard_id)
    except CommandError as error:
        if error.code != ErrorCode.ShardNotFound:
            raise
        raise CommandError(error.code, f"Could not find destination shard :: caused by :: {error.message}") from error


def _throttle(arguments: Arguments) -> dict[str, Any]:
    """Build the write concern for the recipient's writes, in the format of the donor's command.

    It comes from ``secondaryThrottle: {secondaryThrottle: bool, writeConcern?}``, MongoDB's MigrationSecondaryThrottle.
    That field may also begin with an underscore. The balancer's settings do not apply to manual moves.
    """
    given = arguments.maybe_nested(b"secondaryThrottle")
    is_on = given is not None and bool(secondary_throttle(given))
    write_concern = _write_concern(given) if given is not None and is_on else None
    return {
        "secondaryThrottle": is_on,
        "writeConcern": UNTHROTTLED if write_concern is None else raw_document(write_concern),
    }


def _write_concern(throttle: Arguments) -> bytes | None:
    """Return the write concern of an enabled ``secondaryThrottle``; it may be absent but not null.

    Raises:
        CommandError: 10065, it is not a document; FailedToParse, it is empty.
    """
    if not throttle.has(b"writeConcern"):
        return None
    try:
        write_concern = throttle.raw(b"writeConcern")
    except CommandError:
        raise CommandError(_NOT_AN_OBJECT, "invalid parameter: expected an object (writeConcern)") from None
    if write_concern == EMPTY_DOCUMENT:
        raise CommandError(ErrorCode.FailedToParse, "write concern object cannot be empty")
    return write_concern


async def _resolve(chunks: CollectionChunks, low: bytes | None, high: bytes | None) -> tuple[Chunk, dict[str, Any]]:
    """Find the chunk of the range's lower bound, or of its upper one if that is alone, and the donor's bounds."""
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
    return await chunk_bytes_default(operation.term)
