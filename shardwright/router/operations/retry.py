"""Doing an operation again when it was routed by knowledge that proved out of date."""

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from shardwright.router.operations.operation import Operation
from shardwright.router.placement.collection_routing import CollectionRouting
from shardwright.router.placement.database_routing import DatabaseRouting
from shardwright.router.placement.stale_routing import StaleRoutingError
from shardwright.router.routing.routing_cache import RoutingCache
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.transport.request_loop import may_run_in_reactor

T = TypeVar("T")

ATTEMPTS_MAX: Final = 10
"""As mongos's ``kMaxNumStaleVersionRetries``."""


@may_run_in_reactor
async def with_routing(
    operation: Operation,
    namespace: str,
    attempt: Callable[[CollectionRouting], Awaitable[T]],
    *,
    create_database: bool = False,
) -> T:
    """The result of ``attempt``, done with the routing of a collection, again with a fresh one while shards refuse it.

    Args:
        operation: the client's operation.
        namespace: the collection.
        attempt: does it; raises `StaleRoutingError` when a shard refused the versions.
        create_database: make the database if it does not exist.

    Raises:
        CommandError: NamespaceNotFound, the database does not exist; what ``attempt`` raises; the stale error itself,
            once `ATTEMPTS_MAX` attempts met one, or in a transaction that cannot begin again.
    """
    routing_cache = operation.context.routing
    for attempts_left in range(ATTEMPTS_MAX - 1, -1, -1):
        routing = routing_cache.collections.get(namespace) or await routing_cache.collection(
            namespace, create_database=create_database
        )
        try:
            return await attempt(routing)
        except StaleRoutingError as stale:
            _invalidate(routing_cache, stale, routing)
            operation.begin_again(stale.error)
            if not attempts_left:
                raise stale.error from stale
    raise AssertionError("unreachable")


async def with_database(
    operation: Operation,
    db: str,
    attempt: Callable[[DatabaseRouting], Awaitable[T]],
    *,
    create: bool = False,
) -> T:
    """As `with_routing`, for what is done on the primary shard of a database.

    Raises:
        CommandError: NamespaceNotFound, the database does not exist; what ``attempt`` raises; the stale error.
    """
    routing_cache = operation.context.routing
    for attempts_left in range(ATTEMPTS_MAX - 1, -1, -1):
        routing = await routing_cache.database(db, create=create)
        try:
            return await attempt(routing)
        except StaleRoutingError as stale:
            if not _invalidate_involved(routing_cache, stale):
                routing_cache.invalidate_database(routing)
            operation.begin_again(stale.error)
            if not attempts_left:
                raise stale.error from stale
    raise AssertionError("unreachable")


def _invalidate(routing_cache: RoutingCache, stale: StaleRoutingError, routing: CollectionRouting) -> None:
    """Have read again what a shard said is out of date: the operation's own collection, or another that it involves."""
    if _names(stale, routing) or not _invalidate_involved(routing_cache, stale):
        _invalidate_one(routing_cache, stale, routing)


def _invalidate_involved(routing_cache: RoutingCache, stale: StaleRoutingError) -> bool:
    """Have read again those of the further collections that a shard named; returns whether it named one."""
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
