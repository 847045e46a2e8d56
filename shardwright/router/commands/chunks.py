"""Commands that split, merge and move chunks.

``find``, ``bounds`` or ``middle`` selects a chunk. The router computes the range of a move, and the config server makes
the owning shard move it. A migration continues even if the client or this router disconnects; the same command sent
again joins it. ``setAllowMigrations`` forbids migrations of a collection.
"""

from collections.abc import Awaitable, Callable, Mapping
from time import perf_counter
from typing import Any, Final

import bson
from bson.int64 import Int64

from shardwright.router.commands.sharding import MAJORITY
from shardwright.router.ddl.coordinated import command_body
from shardwright.router.operations.operation import Operation
from shardwright.router.operations.retry import with_routing
from shardwright.router.operations.scatter import forwarded, send_to_one, send_to_primary_shard
from shardwright.router.placement.routing_info import CollectionRouting, StaleRoutingError
from shardwright.router.replies.reply_builder import PlainError, Reply
from shardwright.sharding.bson_text import document_text
from shardwright.sharding.catalog.reads import read_chunk_size
from shardwright.sharding.namespace import full_namespace, named_in_full, secondary_throttle
from shardwright.sharding.routing_table import RoutedChunk, RoutingTable
from shardwright.sharding.targeting.filters import exact_shard_key
from shardwright.wire.arguments import Arguments
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.frames import next_request_id
from shardwright.wire.message import op_msg
from shardwright.wire.rawbson import EMPTY_DOCUMENT, append, decode_document, encode_document, is_string, raw_document
from shardwright.wire.request import Request


async def split(operation: Operation) -> Reply:
    """Splits a chunk at a given key, or in the middle of its documents."""

    async def attempt(table: RoutingTable) -> None:
        query, bounds, middle = _split_arguments(operation.request)
        if middle is not None:
            chunk, split_key = _chunk_of_middle(table, middle)
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
        low, high = _checked_bounds(table, bounds)
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
    """Change chunks by a fresh routing table; retry if the collection has a new epoch.

    Raises:
        CommandError: from `fresh_table` or ``attempt``; StaleEpoch after the last retry.
    """
    namespace, routing = str(named_in_full(operation.request)), operation.context.routing
    routing.forget_collection(namespace)
    try:
        await with_routing(operation, namespace, lambda found: attempt(_sharded(found)))
    finally:
        routing.forget_collection(namespace)


async def fresh_table(operation: Operation) -> RoutingTable:
    """Refresh and return the routing table of the collection that the command names.

    Raises:
        CommandError: BadValue or InvalidNamespace, the name is missing or invalid; NamespaceNotSharded;
            NamespaceNotFound.
    """
    namespace = str(named_in_full(operation.request))
    operation.context.routing.forget_collection(namespace)
    return _sharded(await operation.context.routing.collection(namespace))


def _sharded(routing: CollectionRouting) -> RoutingTable:
    if routing.table is None:
        raise CommandError(ErrorCode.NamespaceNotSharded, f"Collection {routing.namespace} is not sharded.")
    return routing.table


def _split_arguments(request: Request) -> tuple[bytes | None, list[bytes] | None, bytes | None]:
    """Return ``find``, ``bounds`` and ``middle``. Exactly one is given."""
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
    """Return None for an empty document, which counts as absent, as in mongos."""
    return None if document == EMPTY_DOCUMENT else document


def two_bounds(bounds: list[bytes]) -> list[bytes]:
    """Return the lower and the upper bound in a command's argument.

    Raises:
        PlainError: one is missing.
    """
    if not bounds:
        raise PlainError("lower bound not specified")
    if len(bounds) < 2:
        raise PlainError("upper bound not specified")
    return bounds[:2]


async def _median_key(operation: Operation, table: RoutingTable, chunk: RoutedChunk) -> bytes:
    """Find the key in the middle of a chunk's documents on the owning shard."""
    keys = await _split_vector(operation, table, chunk.shard, chunk.min, chunk.max, force=True)
    if not keys:
        raise CommandError(ErrorCode.CannotSplit, "Unable to find median in chunk because chunk is indivisible.")
    return keys[0]


_FORCE_MANUAL: Final = 1
"""Value of the servers' numeric ``forceJumbo`` for a user's explicit request; 2 is the balancer's."""


async def move_chunk(operation: Operation) -> Reply:
    """Moves one chunk to another shard."""
    started = perf_counter()
    request = operation.request
    table = await fresh_table(operation)
    to_shard = await _destination(operation)
    query = given(Arguments.of(request).maybe_raw(b"find"))
    bounds = Arguments.of(request).maybe_raw_documents(b"bounds")
    if (query is None) == (not bounds):
        raise PlainError("need to specify either a find query, or both lower and upper bounds.")
    chunk = chunk_of_query(table, query) if query is not None else chunk_of_bounds(table, two_bounds(bounds or []))
    move = {"toShard": to_shard, "min": raw_document(chunk.min), "max": raw_document(chunk.max)}
    await _move(operation, str(table.namespace), move, (b"waitForDelete", b"_waitForDelete"))
    return {"millis": int((perf_counter() - started) * 1000)}


async def move_range(operation: Operation) -> Reply:
    """Moves a range of shard key values, a part of one chunk, to another shard."""
    request = operation.request
    namespace = str(full_namespace(request))
    move: dict[str, Any] = {"toShard": Arguments.of(request).string(b"toShard")}
    low, high = (Arguments.of(request).maybe_raw(name) for name in (b"min", b"max"))
    if high is not None:
        move["max"] = raw_document(high)
    if low is not None:
        await _move_range(operation, namespace, move, low)
    elif high is not None:
        await _move_largest_range(operation, namespace, move, high)
    else:
        raise CommandError(ErrorCode.InvalidOptions, "Must specify at least one of 'min' or 'max'")
    return {}


async def set_allow_migrations(operation: Operation) -> Reply:
    """Forbids or allows migrations of a collection's chunks."""
    request = operation.request
    namespace = full_namespace(request)
    allow = Arguments.of(request).required_boolean(b"allowMigrations")
    body = command_body(namespace.db, {"_shardsvrSetAllowMigrations": namespace.collection, "allowMigrations": allow})
    try:
        await send_to_primary_shard(operation, namespace.db, body, may_repeat=True)
    finally:
        operation.context.routing.forget_collection(str(namespace))
    return {}


async def _destination(operation: Operation) -> str:
    """Return the destination of a ``moveChunk``, given as a shard name, a connection string or a member's address."""
    identifier = operation.argument(b"to")
    if not is_string(identifier):
        raise CommandError(ErrorCode.TypeMismatch, "'to' must be of type String")
    if not identifier:
        raise PlainError("you have to specify where you want to move the chunk")
    await operation.context.shards.reload()
    shard = operation.context.shards.find(identifier)
    if shard is None:
        raise CommandError(ErrorCode.ShardNotFound, "moveChunk destination shard does not exist")
    return shard.id


async def _move_largest_range(operation: Operation, namespace: str, move: Mapping[str, Any], high: bytes) -> None:
    """Move the range for which only the upper bound is given.

    A config server of MongoDB 6.0.5 crashes on a range without a lower bound, so the router chooses one. If the chunk
    has since been split, for example by auto-splitting, the range must lie within the part that now ends at ``high``.
    """
    low = await _lower_bound(operation, high)
    while True:
        try:
            return await _move_range(operation, namespace, move, low)
        except CommandError as error:
            if error.code != ErrorCode.IncompatibleShardingMetadata:
                raise
            chosen, low = low, await _lower_bound(operation, high)
            if low == chosen:
                raise


async def _move_range(operation: Operation, namespace: str, move: Mapping[str, Any], low: bytes) -> None:
    await _move(operation, namespace, {**move, "min": raw_document(low)}, (b"waitForDelete",))


async def _lower_bound(operation: Operation, high: bytes) -> bytes:
    """Return the lower bound of the largest range within one chunk that ends at ``high`` and may be moved at once."""
    table = await fresh_table(operation)
    last = table.key_pattern.normalize(high)
    if last is None:
        raise CommandError(ErrorCode.InvalidOptions, f"'max' is not a key of the pattern {table.key_pattern}")
    chunk = table.chunk_before_key(table.key_pattern.key_bytes(last))
    bytes_max = Int64(await _chunk_bytes_max(operation, table))
    keys = await _split_vector(operation, table, chunk.shard, chunk.min, last, maxChunkSizeBytes=bytes_max)
    # The keys are half of that size apart, and less than half may follow the last one.
    return keys[-2] if len(keys) > 1 else chunk.min


async def _chunk_bytes_max(operation: Operation, table: RoutingTable) -> int:
    own = table.collection.max_chunk_size_bytes
    return own if own is not None else await operation.context.catalog.read(read_chunk_size())


async def _move(operation: Operation, namespace: str, move: dict[str, Any], waits: tuple[bytes, ...]) -> None:
    """Request a move from the config server.

    Args:
        move: the fields that describe the range and its destination.
        waits: the options that make a move wait for the donor's range deletion.
    """
    request = operation.request
    configsvr_command = {
        "_configsvrMoveRange": namespace,
        **move,
        "waitForDelete": any(Arguments.of(request).boolean(name) for name in waits),
        "forceJumbo": _FORCE_MANUAL if Arguments.of(request).boolean(b"forceJumbo") else 0,
        **_throttle(request, secondary_throttle(Arguments.of(request))),
        "writeConcern": MAJORITY,
    }
    try:
        await operation.context.catalog.command(configsvr_command)
    finally:
        operation.context.routing.forget_collection(namespace)


def _throttle(request: Request, is_on: bool | None) -> dict[str, Any]:
    """Encode the recipient's secondary throttle in the servers' internal form.

    The command's own write concern is used for nothing else, and only if ``secondaryThrottle`` is on.
    """
    if is_on is None:
        return {}
    throttle: dict[str, Any] = {"secondaryThrottle": is_on}
    write_concern = Arguments.of(request).maybe_raw(b"writeConcern")
    if is_on and write_concern is not None:
        throttle["writeConcern"] = decode_document(write_concern)
    return {"secondaryThrottle": throttle}


async def split_vector_unsharded(operation: Operation) -> Reply:
    """Finds keys at which an unsharded collection could be split."""

    async def attempt(routing: CollectionRouting) -> Reply:
        routing = await operation.context.routing.confirmed_if_sharded(routing)
        if routing.is_sharded:
            raise CommandError(ErrorCode.IllegalOperation, "can't do command: splitVector on sharded collection")
        frame = forwarded(operation, routing.versions_for(routing.primary))
        return (await send_to_one(operation, routing.primary, frame, may_repeat=True)).for_client()

    return await with_routing(operation, str(named_in_full(operation.request)), attempt)


async def _split_vector(
    operation: Operation,
    table: RoutingTable,
    shard_id: str,
    low: bytes,
    high: bytes,
    **how: Any,  # noqa: ANN401 - options of the command
) -> list[bytes]:
    """Return the keys that the shard's ``splitVector`` finds between two bounds, in order.

    Args:
        shard_id: the owner of the range.
        low, high: bounds of the range, shard key documents.
        how: ``force: True`` for one key in the middle, or ``maxChunkSizeBytes`` for keys half that size apart.

    Raises:
        CommandError: StaleConfig; or the shard's error.
    """
    question = bson.encode(
        {
            "splitVector": str(table.namespace),
            "keyPattern": raw_document(table.key_pattern.document),
            "min": raw_document(low),
            "max": raw_document(high),
            **how,
            "$db": "admin",
        }
    )
    frame = op_msg(append(question, table.shard_version_element(shard_id)), request_id=next_request_id())
    try:
        reply = await send_to_one(operation, shard_id, frame, may_repeat=True)
    except StaleRoutingError as stale:  # the chunk has just changed, so the choice of the range is outdated, too
        raise stale.error from stale
    reply.raise_for_error()
    keys: list[dict[str, Any]] = reply.get(b"splitKeys", [])
    return [encode_document(key) for key in keys]


def chunk_of_query(table: RoutingTable, query: bytes) -> RoutedChunk:
    """Return the chunk of the shard key in a query.

    Raises:
        PlainError: the query does not contain a full shard key.
    """
    key = exact_shard_key(query, table.key_pattern)
    if key is None:
        raise PlainError(f"no shard key found in chunk query {document_text(query)}")
    return table.chunk_for_key(table.key_pattern.key_bytes(key))


def _chunk_of_middle(table: RoutingTable, middle: bytes) -> tuple[RoutedChunk, bytes]:
    """Return the chunk to split at a key, and the key with its fields in the pattern's order.

    Raises:
        PlainError: it is not a key of this collection, or already a bound.
    """
    key = table.key_pattern.normalize(middle)
    if key is None:
        raise PlainError(
            f"new split key {document_text(middle)} is not valid for shard key pattern {table.key_pattern}"
        )
    key_bytes = table.key_pattern.key_bytes(key)
    chunk = table.chunk_for_key(key_bytes)
    if key_bytes in (chunk.min_key, chunk.max_key):
        raise PlainError(
            f"new split key {document_text(key)} is a boundary key of existing chunk "
            f"[{document_text(chunk.min)},{document_text(chunk.max)})"
        )
    return chunk, key


def chunk_of_bounds(table: RoutingTable, bounds: list[bytes]) -> RoutedChunk:
    """Return the chunk with exactly these two bounds.

    Raises:
        PlainError: the bounds are not keys of this collection, or no chunk has them.
    """
    low, high = _checked_bounds(table, bounds)
    encode = table.key_pattern.key_bytes
    chunk = table.chunk_for_key(encode(low))
    if (chunk.min_key, chunk.max_key) != (encode(low), encode(high)):
        raise PlainError(f"no chunk found with the shard key bounds [{document_text(low)}, {document_text(high)})")
    return chunk


def _checked_bounds(table: RoutingTable, bounds: list[bytes]) -> tuple[bytes, bytes]:
    """Return two bounds as shard key documents with the fields in the pattern's order.

    Raises:
        PlainError: they are not keys of this collection.
    """
    low, high = (table.key_pattern.normalize(bound) for bound in bounds)
    if low is None or high is None:
        raise PlainError(
            f"shard key bounds [{document_text(bounds[0])},{document_text(bounds[1])}) are not valid for shard key "
            f"pattern {table.key_pattern}"
        )
    return low, high
