"""Commands that move chunks: ``moveChunk``, ``moveRange``, and ``setAllowMigrations``, which forbids them.

The router works out the range, and the config server makes the owning shard move it. A migration continues even if the
client or this router goes away; the same command sent again joins it.
"""

from collections.abc import Mapping
from time import perf_counter
from typing import Any, Final

from bson.int64 import Int64

from shardwright.router.commands.chunks import fresh_table, given, two_bounds
from shardwright.router.commands.command_registry import command
from shardwright.router.commands.sharding import MAJORITY
from shardwright.router.ddl.chunk_choice import chunk_of_bounds, chunk_of_query
from shardwright.router.ddl.coordinated import command_body
from shardwright.router.operations.operation import Operation
from shardwright.router.operations.routed_sending import send_to_primary_shard
from shardwright.router.operations.split_vector import split_vector
from shardwright.router.replies.own_reply import Reply
from shardwright.router.replies.plain_error import PlainError
from shardwright.sharding.arguments import full_namespace, secondary_throttle
from shardwright.sharding.catalog.reads import read_chunk_size
from shardwright.sharding.routing_table import RoutingTable
from shardwright.wire.arguments import Arguments
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import decode_document, is_string, raw_document
from shardwright.wire.request import Request

_FORCE_MANUAL: Final = 1
"""Between servers ``forceJumbo`` is a number; this one stands for a user's explicit request (2 is the balancer's)."""


@command("moveChunk", aliases=("movechunk",), admin_only=True, supports_write_concern=True)
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


@command("moveRange", admin_only=True, supports_write_concern=True)
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


@command("setAllowMigrations", admin_only=True, supports_write_concern=True)
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
    """The shard that ``moveChunk`` is to move to, given by its name, its connection string or one of its members.

    Raises:
        CommandError: ShardNotFound; TypeMismatch.
    """
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

    A config server of MongoDB 6.0.5 does not survive a range without a lower bound, so the router chooses one. If the
    chunk is split meanwhile, as by auto-splitting, the range is to be within the part that ends at ``high`` now.
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
    """The lower bound of the largest range within one chunk that ends at ``high`` and may be moved at once.

    Raises:
        CommandError: NamespaceNotSharded; InvalidOptions, ``high`` is not a key; what the shard answers.
    """
    table = await fresh_table(operation)
    last = table.key_pattern.normalize(high)
    if last is None:
        raise CommandError(ErrorCode.InvalidOptions, f"'max' is no key of the pattern {table.key_pattern}")
    chunk = table.chunk_before_key(table.key_pattern.key_bytes(last))
    bytes_max = Int64(await _chunk_bytes_max(operation, table))
    keys = await split_vector(operation, table, chunk.shard, chunk.min, last, maxChunkSizeBytes=bytes_max)
    # They are half of that size apart, and less than half may lie behind the last.
    return keys[-2] if len(keys) > 1 else chunk.min


async def _chunk_bytes_max(operation: Operation, table: RoutingTable) -> int:
    own = table.collection.max_chunk_size_bytes
    return own if own is not None else await operation.context.catalog.read(read_chunk_size())


async def _move(operation: Operation, namespace: str, move: dict[str, Any], waits: tuple[bytes, ...]) -> None:
    """Ask the config server for a move.

    Args:
        operation: the client's command, whose options apply.
        namespace: the collection.
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
    """How the recipient is to wait for its secondaries, in the servers' internal form.

    The command's own write concern applies to nothing else, and only if ``secondaryThrottle`` is on.
    """
    if is_on is None:
        return {}
    throttle: dict[str, Any] = {"secondaryThrottle": is_on}
    write_concern = Arguments.of(request).maybe_raw(b"writeConcern")
    if is_on and write_concern is not None:
        throttle["writeConcern"] = decode_document(write_concern)
    return {"secondaryThrottle": throttle}
