"""Commands that change the bounds of chunks: ``split``, ``mergeChunks``."""

from collections.abc import Awaitable, Callable

from shardwright.router.commands.command_registry import command
from shardwright.router.ddl.chunk_choice import checked_bounds, chunk_of_bounds, chunk_of_middle, chunk_of_query
from shardwright.router.operations.operation import Operation
from shardwright.router.operations.retry import with_routing
from shardwright.router.operations.split_vector import split_vector
from shardwright.router.placement.collection_routing import CollectionRouting
from shardwright.router.replies.own_reply import Reply
from shardwright.router.replies.plain_error import PlainError
from shardwright.sharding.arguments import named_in_full
from shardwright.sharding.routing_table import RoutedChunk, RoutingTable
from shardwright.wire.arguments import Arguments
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import EMPTY_DOCUMENT, raw_document
from shardwright.wire.request import Request


@command("split", admin_only=True)
async def split(operation: Operation) -> Reply:
    """Splits a chunk at a given key, or in the middle of its documents."""

    async def attempt(table: RoutingTable) -> None:
        query, bounds, middle = _split_arguments(operation.request)
        if middle is not None:
            chunk, split_key = chunk_of_middle(table, middle)
        else:
            chunk = chunk_of_query(table, query) if query is not None else chunk_of_bounds(table, bounds or [])
            split_key = await _median_key(operation, table, chunk)
        splitting = {
            "splitChunk": str(table.namespace),
            "from": chunk.shard,
            "keyPattern": raw_document(table.key_pattern.document),
            "epoch": table.collection.epoch,
            "timestamp": table.collection.timestamp,
            "min": raw_document(chunk.min),
            "max": raw_document(chunk.max),
            "splitKeys": [raw_document(split_key)],
        }
        await operation.context.sender.command(chunk.shard, "admin", splitting, may_repeat=True)

    await _change_chunks(operation, attempt)
    return {}


@command("mergeChunks", admin_only=True)
async def merge_chunks(operation: Operation) -> Reply:
    """Merges all chunks between two bounds, which must be on one shard."""
    named_in_full(operation.request)
    bounds = Arguments.of(operation.request).maybe_raw_documents(b"bounds")
    if not bounds:
        raise PlainError("no bounds were specified")
    if len(bounds) != 2:
        raise PlainError("only a min and max bound may be specified")
    for bound, name in zip(bounds, ("min", "max"), strict=True):
        if bound == EMPTY_DOCUMENT:
            raise PlainError(f"no {name} key specified")

    async def attempt(table: RoutingTable) -> None:
        low, high = checked_bounds(table, bounds)
        owner = table.shard_for_key(table.key_pattern.key_bytes(low))
        merging = {
            "mergeChunks": str(table.namespace),
            "bounds": [raw_document(low), raw_document(high)],
            "epoch": table.collection.epoch,
            "timestamp": table.collection.timestamp,
        }
        await operation.context.sender.command(owner, "admin", merging, may_repeat=True)

    await _change_chunks(operation, attempt)
    return {}


async def _change_chunks(operation: Operation, attempt: Callable[[RoutingTable], Awaitable[None]]) -> None:
    """Change chunks by the present routing table, and again if the collection has been given another epoch meanwhile.

    Raises:
        CommandError: see `fresh_table`; what ``attempt`` raises; StaleEpoch, in each of many attempts.
    """
    namespace, routing = str(named_in_full(operation.request)), operation.context.routing
    routing.forget_collection(namespace)
    try:
        await with_routing(operation, namespace, lambda found: attempt(_sharded(found)))
    finally:
        routing.forget_collection(namespace)


async def fresh_table(operation: Operation) -> RoutingTable:
    """The routing table of the collection that the command names, read again.

    Raises:
        CommandError: BadValue or InvalidNamespace, it names none; NamespaceNotSharded; NamespaceNotFound.
    """
    namespace = str(named_in_full(operation.request))
    operation.context.routing.forget_collection(namespace)
    return _sharded(await operation.context.routing.collection(namespace))


def _sharded(routing: CollectionRouting) -> RoutingTable:
    if routing.table is None:
        raise CommandError(ErrorCode.NamespaceNotSharded, f"Collection {routing.namespace} is not sharded.")
    return routing.table


def _split_arguments(request: Request) -> tuple[bytes | None, list[bytes] | None, bytes | None]:
    """``find``, ``bounds`` and ``middle``, of which exactly one is given.

    Raises:
        PlainError: none, or more than one.
    """
    query = given(Arguments.of(request).maybe_raw(b"find"))
    bounds = Arguments.of(request).maybe_raw_documents(b"bounds") or None
    middle = given(Arguments.of(request).maybe_raw(b"middle"))
    if bounds is not None:
        bounds = two_bounds(bounds)
    if query is not None and bounds is not None:
        raise PlainError("cannot specify bounds and find at the same time")
    if query is None and bounds is None and middle is None:
        raise PlainError("need to specify find/bounds or middle")
    if query is not None and middle is not None:
        raise PlainError("cannot specify find and middle together")
    if bounds is not None and middle is not None:
        raise PlainError("cannot specify bounds and middle together")
    return query, bounds, middle


def given(document: bytes | None) -> bytes | None:
    """An empty document counts as none, as in mongos."""
    return None if document == EMPTY_DOCUMENT else document


def two_bounds(bounds: list[bytes]) -> list[bytes]:
    """The lower and the upper bound in a command's argument.

    Raises:
        PlainError: one is missing.
    """
    if not bounds:
        raise PlainError("lower bound not specified")
    if len(bounds) < 2:
        raise PlainError("upper bound not specified")
    return bounds[:2]


async def _median_key(operation: Operation, table: RoutingTable, chunk: RoutedChunk) -> bytes:
    """The key in the middle of a chunk's documents, determined by the shard that owns it.

    Raises:
        CommandError: CannotSplit, there is none; StaleConfig.
    """
    keys = await split_vector(operation, table, chunk.shard, chunk.min, chunk.max, force=True)
    if not keys:
        raise CommandError(ErrorCode.CannotSplit, "Unable to find median in chunk because chunk is indivisible.")
    return keys[0]
