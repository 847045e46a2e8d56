"""Retries of operations whose routing was stale. Batches of writes are resent in rounds (`router.writes.run`)."""

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from shardwright.router.operations.operation import Operation
from shardwright.router.placement.routing_info import (
    CollectionRouting,
    DatabaseRouting,
    StaleRoutingError,
    UnknownShardError,
)
from shardwright.router.routing.routing_cache import RoutingCache
from shardwright.sharding.time_series import on_buckets
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.message import OpMsg, op_msg
from shardwright.wire.request import Request
from shardwright.wire.transport.reactor import may_run_in_reactor

T = TypeVar("T")

ATTEMPTS_MAX: Final = 10
"""Maximum number of attempts, mongos's ``kMaxNumStaleVersionRetries``."""


class BucketsShardedError(CommandError):
    """A shard's refusal because the collection's buckets are sharded, so that the command must name the buckets."""

    def __init__(self, stale: CommandError) -> None:
        super().__init__(stale.code, stale.message, labels=stale.labels, extra=stale.extra)


@may_run_in_reactor
async def with_routing(
    operation: Operation,
    namespace: str,
    attempt: Callable[[CollectionRouting], Awaitable[T]],
    *,
    create_database: bool = False,
) -> T:
    """Run ``attempt`` with cached routing; refresh and retry on stale-routing errors.

    Args:
        attempt: raises `StaleRoutingError` when a shard refused the versions.

    Raises:
        BucketsShardedError: it is a sharded time-series collection.
        CommandError: NamespaceNotFound, the database does not exist; an error of ``attempt``; the stale-routing error
            itself, after `ATTEMPTS_MAX` attempts or in a transaction that cannot restart.
    """
    routing_cache = operation.context.routing
    for attempts_left in range(ATTEMPTS_MAX - 1, -1, -1):
        routing = operation.routing_of(namespace)
        if routing is None:
            operation.awaited_routing = True
            routing = await routing_cache.collection(namespace, create_database=create_database)
        operation.table = routing.table
        try:
            return await attempt(routing)
        except (StaleRoutingError, UnknownShardError) as refusal:
            stale = _stale(refusal)
            if not routing.is_sharded and routing_cache.note_time_series(namespace, stale.error):
                operation.begin_again(stale.error)
                raise BucketsShardedError(stale.error) from stale
            _invalidate(routing_cache, stale, routing)
            operation.begin_again(stale.error)
            if not attempts_left:
                raise stale.error from stale
    raise AssertionError("unreachable")


async def on_buckets_if_sharded(operation: Operation, run: Callable[[Operation], Awaitable[T]]) -> T:
    """Run a command, or the same command on the buckets of a sharded time-series collection."""
    routing_cache, namespace = operation.context.routing, operation.namespace
    if namespace not in routing_cache.time_series:
        try:
            return await run(operation)
        except BucketsShardedError:
            pass
    if await routing_cache.sharded_buckets(namespace) is None:
        return await run(operation)
    request = operation.request
    message = op_msg(on_buckets(request.body), request_id=request.message.request_id, sections=_sections(request))
    part = operation.part(Request(OpMsg(message)))
    try:
        return await run(part)
    finally:
        operation.note_part(part)


def _sections(request: Request) -> bytes:
    return b"".join([sequence.section() for sequence in request.message.sequences])


async def with_database(
    operation: Operation,
    db: str,
    attempt: Callable[[DatabaseRouting], Awaitable[T]],
    *,
    create: bool = False,
) -> T:
    """Do the same as `with_routing` for an attempt on the primary shard of a database.

    Raises:
        CommandError: NamespaceNotFound, the database does not exist; an error of ``attempt``; the stale-routing error.
    """
    routing_cache = operation.context.routing
    for attempts_left in range(ATTEMPTS_MAX - 1, -1, -1):
        routing = await routing_cache.database(db, create=create)
        try:
            return await attempt(routing)
        except (StaleRoutingError, UnknownShardError) as refusal:
            stale = _stale(refusal)
            if not _invalidate_involved(routing_cache, stale):
                routing_cache.invalidate_database(routing)
            operation.begin_again(stale.error)
            if not attempts_left:
                raise stale.error from stale
    raise AssertionError("unreachable")


def _stale(refusal: StaleRoutingError | UnknownShardError) -> StaleRoutingError:
    """Convert a refusal to a shard's. A removed shard cannot refuse, so its absence counts as a refusal."""
    return refusal if isinstance(refusal, StaleRoutingError) else StaleRoutingError(refusal)


def _invalidate(routing_cache: RoutingCache, stale: StaleRoutingError, routing: CollectionRouting) -> None:
    """Invalidate the stale routing that a shard named: the operation's own collection, or an involved one."""
    if _names(stale, routing) or not _invalidate_involved(routing_cache, stale):
        _invalidate_one(routing_cache, stale, routing)


def _invalidate_involved(routing_cache: RoutingCache, stale: StaleRoutingError) -> bool:
    """Evict the involved collections that a shard named; return whether it named any."""
    named = [routing for routing in stale.involved if _names(stale, routing)]
    for routing in named:
        _invalidate_one(routing_cache, stale, routing)
    return bool(named)


def _names(stale: StaleRoutingError, routing: CollectionRouting) -> bool:
    if stale.error.code == ErrorCode.StaleDbVersion:
        return stale.error.extra.get("db") == routing.database.name
    return stale.error.extra.get("ns") == routing.namespace


def _invalidate_one(routing_cache: RoutingCache, stale: StaleRoutingError, routing: CollectionRouting) -> None:
    if stale.error.code == ErrorCode.StaleDbVersion:
        routing_cache.invalidate_database(routing.database)
    routing_cache.invalidate(routing)
