"""Commands on chunks: ``split``, ``mergeChunks``, ``moveChunk``, ``moveRange``."""

from time import perf_counter
from typing import Any

import bson
from bson.int64 import Int64

from router import arguments
from router.chunk_choice import checked_bounds, chunk_of_bounds, chunk_of_middle, chunk_of_query
from router.commands.sharding import MAJORITY
from router.operation import Operation
from router.plain_error import PlainError
from router.registry import Reply, command
from router.scatter import send_to_one
from router.shard_reply import StaleRoutingError
from sharding.routing_table import RoutedChunk, RoutingTable
from wire.error_codes import ErrorCode
from wire.errors import CommandError
from wire.message import next_request_id, op_msg
from wire.rawbson import EMPTY_DOCUMENT, append, encode_document, raw_document
from wire.request import Request


@command("split", admin_only=True)
async def split(operation: Operation) -> Reply:
    """Splits a chunk at a given key, or in the middle of its documents."""
    request = operation.request
    table = await _fresh_table(operation)
    query, bounds, middle = _split_arguments(request)
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
    try:
        await operation.router.command_on_shard(chunk.shard, "admin", splitting, may_repeat=True)
    finally:
        operation.router.routing.forget_collection(str(table.namespace))
    return {}


@command("mergeChunks", admin_only=True)
async def merge_chunks(operation: Operation) -> Reply:
    """Makes one chunk of all chunks between two bounds, which lie on one shard."""
    bounds = arguments.raw_documents(operation.request, b"bounds")
    if not bounds:
        raise PlainError("no bounds were specified")
    if len(bounds) != 2:
        raise PlainError("only a min and max bound may be specified")
    for bound, name in zip(bounds, ("min", "max"), strict=True):
        if bound == EMPTY_DOCUMENT:
            raise PlainError(f"no {name} key specified")
    table = await _fresh_table(operation)
    low, high = checked_bounds(table, bounds)
    owner = table.shard_for_key(table.key_pattern.key_bytes(low))
    merging = {
        "mergeChunks": str(table.namespace),
        "bounds": [raw_document(low), raw_document(high)],
        "epoch": table.collection.epoch,
        "timestamp": table.collection.timestamp,
    }
    try:
        await operation.router.command_on_shard(owner, "admin", merging, may_repeat=True)
    finally:
        operation.router.routing.forget_collection(str(table.namespace))
    return {}


@command("moveChunk", aliases=("movechunk",), admin_only=True)
async def move_chunk(operation: Operation) -> Reply:
    """Moves one chunk to another shard."""
    started = perf_counter()
    request = operation.request
    table = await _fresh_table(operation)
    to_shard = await _destination(operation, b"to")
    query = _given(arguments.raw_document(request, b"find"))
    bounds = arguments.raw_documents(request, b"bounds")
    if (query is None) == (not bounds):
        raise PlainError("need to specify either a find query, or both lower and upper bounds.")
    chunk = chunk_of_query(table, query) if query is not None else chunk_of_bounds(table, _two(bounds or []))
    await _move(operation, table, {"min": raw_document(chunk.min), "max": raw_document(chunk.max)}, to_shard)
    return {"millis": Int64((perf_counter() - started) * 1000)}


@command("moveRange", admin_only=True)
async def move_range(operation: Operation) -> Reply:
    """Moves a range of shard key values, a part of one chunk, to another shard."""
    request = operation.request
    table = await _fresh_table(operation)
    to_shard = await _destination(operation, b"toShard")
    bounds = {
        name: raw_document(bound)
        for name in ("min", "max")
        if (bound := arguments.raw_document(request, name.encode())) is not None
    }
    if not bounds:
        raise CommandError(ErrorCode.InvalidOptions, "Must specify at least one of 'min' or 'max'")
    if "min" not in bounds:
        # A config server of MongoDB 6.0.5 does not survive a range without a lower bound.
        last = table.key_pattern.normalize(arguments.required_document(request, b"max"))
        if last is None:
            raise CommandError(ErrorCode.InvalidOptions, f"'max' is no key of the pattern {table.key_pattern}")
        bounds["min"] = raw_document(table.chunk_before_key(table.key_pattern.key_bytes(last)).min)
    await _move(operation, table, bounds, to_shard)
    return {}


async def _fresh_table(operation: Operation) -> RoutingTable:
    """The routing table of the collection that the command names, read anew.

    Raises:
        CommandError: NamespaceNotSharded; NamespaceNotFound.
    """
    namespace = str(arguments.full_namespace(operation.request))
    operation.router.routing.forget_collection(namespace)
    routing = await operation.router.routing.collection(namespace)
    if routing.table is None:
        raise CommandError(ErrorCode.NamespaceNotSharded, f"Collection {namespace} is not sharded.")
    return routing.table


def _split_arguments(request: Request) -> tuple[bytes | None, list[bytes] | None, bytes | None]:
    """``find``, ``bounds`` and ``middle``, just one of them given.

    Raises:
        PlainError: none, or more than one.
    """
    query = _given(arguments.raw_document(request, b"find"))
    bounds = arguments.raw_documents(request, b"bounds") or None
    middle = _given(arguments.raw_document(request, b"middle"))
    if bounds is not None:
        bounds = _two(bounds)
    if query is not None and bounds is not None:
        raise PlainError("cannot specify bounds and find at the same time")
    if query is None and bounds is None and middle is None:
        raise PlainError("need to specify find/bounds or middle")
    if query is not None and middle is not None:
        raise PlainError("cannot specify find and middle together")
    if bounds is not None and middle is not None:
        raise PlainError("cannot specify bounds and middle together")
    return query, bounds, middle


def _given(document: bytes | None) -> bytes | None:
    """An empty document counts as none, as in mongos."""
    return None if document == EMPTY_DOCUMENT else document


def _two(bounds: list[bytes]) -> list[bytes]:
    if not bounds:
        raise PlainError("lower bound not specified")
    if len(bounds) < 2:
        raise PlainError("upper bound not specified")
    return bounds[:2]


async def _median_key(operation: Operation, table: RoutingTable, chunk: RoutedChunk) -> bytes:
    """The key in the middle of a chunk's documents, found by the shard that has them.

    Raises:
        CommandError: CannotSplit, there is none; StaleConfig.
    """
    question = bson.encode(
        {
            "splitVector": str(table.namespace),
            "keyPattern": raw_document(table.key_pattern.document),
            "min": raw_document(chunk.min),
            "max": raw_document(chunk.max),
            "force": True,
            "$db": "admin",
        }
    )
    frame = op_msg(append(question, table.shard_version_element(chunk.shard)), request_id=next_request_id())
    try:
        reply = await send_to_one(operation, chunk.shard, frame, may_repeat=True)
    except StaleRoutingError as stale:  # the chunk was changed at this very moment
        raise stale.error from stale
    reply.raise_for_error()
    keys: list[dict[str, Any]] = reply.get(b"splitKeys", [])
    if not keys:
        raise CommandError(ErrorCode.CannotSplit, "Unable to find median in chunk because chunk is indivisible.")
    return encode_document(keys[0])


async def _destination(operation: Operation, name: bytes) -> str:
    """The shard to move to.

    Raises:
        CommandError: ShardNotFound; TypeMismatch.
    """
    shard_id = operation.argument(name)
    if not isinstance(shard_id, str):
        raise CommandError(ErrorCode.TypeMismatch, f"'{name.decode()}' must be of type String")
    if not shard_id:
        raise PlainError("you have to specify where you want to move the chunk")
    await operation.router.shards.reload()
    return (await operation.router.shards.get(shard_id)).id


async def _move(operation: Operation, table: RoutingTable, bounds: dict[str, Any], to_shard: str) -> None:
    request = operation.request
    moving: dict[str, Any] = {
        "_configsvrMoveRange": str(table.namespace),
        "toShard": to_shard,
        **bounds,
        "waitForDelete": arguments.boolean(request, b"waitForDelete") or arguments.boolean(request, b"_waitForDelete"),
        # Among servers this is a number, 1 standing for a person who insists (2 would be the balancer).
        "forceJumbo": int(arguments.boolean(request, b"forceJumbo")),
        "writeConcern": MAJORITY,
    }
    throttle = arguments.passed_on(request, b"secondaryThrottle", b"_secondaryThrottle")
    if throttle:
        moving["secondaryThrottle"] = bool(next(iter(throttle.values())))
    try:
        await operation.router.catalog.command(moving)
    finally:
        operation.router.routing.forget_collection(str(table.namespace))
