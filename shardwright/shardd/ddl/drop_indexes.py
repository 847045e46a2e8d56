"""``dropIndexes`` on all shards that have a collection (``_shardsvrDropIndexes``)."""

from collections.abc import Awaitable, Mapping
from typing import Any

import trio

from shardwright.shardd.context.other_shards import send_to_shard
from shardwright.shardd.context.shard_context import ShardContext
from shardwright.shardd.ddl.primary_shard import check_is_same_database
from shardwright.shardd.local_mongod.local_collections import change
from shardwright.sharding.catalog.reads import read_routing
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.routing_table import RoutingTable
from shardwright.sharding.time_series import IS_TIME_SERIES_NAMESPACE
from shardwright.sharding.versions import DatabaseVersion
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError


async def drop_indexes_everywhere(
    context: ShardContext, namespace: Namespace, index: object, received: DatabaseVersion
) -> dict[str, Any]:
    """Drop indexes on every shard that owns chunks; a shard may lack them if another one has them.

    Args:
        context: the context of the database's primary shard, which is this one.
        namespace: the collection.
        index: the argument of ``dropIndexes``: a name, a key, a list of names, or ``*``.
        received: the version of the database in the request.

    Raises:
        CommandError: LockBusy; IndexNotFound, no shard has them; or a shard's error. ``raw`` has the replies of all.
    """
    async with context.ddl_locks.hold_all([namespace.db, str(namespace)]):
        await check_is_same_database(context, namespace, received)
        catalog = await context.catalog()
        table = await catalog.read(read_routing(str(namespace)))
        drop = {"dropIndexes": namespace.collection, "index": index}
        if table is None and not namespace.is_time_series_buckets:
            table = await catalog.read(read_routing(str(namespace.buckets)))
            if table is not None:
                namespace = namespace.buckets
                drop = {**drop, "dropIndexes": namespace.collection, IS_TIME_SERIES_NAMESPACE.decode(): True}
        shards = await catalog.shards()
        if table is None:
            outcomes = {context.require_identity().shard_name: await _outcome(change(context.mongod, namespace, drop))}
        else:
            outcomes = await _drop_on_owners(context, namespace, drop, table)
    raw = {shards[shard_id].host: _shown(outcome) for shard_id, outcome in sorted(outcomes.items())}
    error = _error_of_all(outcomes)
    if error is not None:
        raise CommandError(error.code, error.message, labels=error.labels, extra={**error.extra, "raw": raw})
    return {"raw": raw}


_Outcome = dict[str, Any] | CommandError


async def _drop_on_owners(
    context: ShardContext, namespace: Namespace, drop: dict[str, Any], table: RoutingTable
) -> dict[str, _Outcome]:
    outcomes: dict[str, _Outcome] = {}

    async def send(shard_id: str) -> None:
        versioned = {**drop, "shardVersion": table.shard_version(shard_id).to_document()}
        outcomes[shard_id] = await _outcome(send_to_shard(context, shard_id, namespace.db, versioned))

    async with trio.open_nursery() as nursery:
        for shard_id in table.shards:
            nursery.start_soon(send, shard_id)
    return outcomes


async def _outcome(sending: Awaitable[dict[str, Any]]) -> _Outcome:
    try:
        return await sending
    except CommandError as error:
        return error


def _error_of_all(outcomes: Mapping[str, _Outcome]) -> CommandError | None:
    """The error of the whole command; None if the indexes are gone, which not all shards need to have had."""
    errors = [outcome for _, outcome in sorted(outcomes.items()) if isinstance(outcome, CommandError)]
    counted = [error for error in errors if error.code != ErrorCode.IndexNotFound or len(errors) == len(outcomes)]
    return counted[0] if counted else None


def _shown(outcome: _Outcome) -> dict[str, Any]:
    return outcome.reply() if isinstance(outcome, CommandError) else _without_times(outcome)


def _without_times(reply: dict[str, Any]) -> dict[str, Any]:
    """A reply without its gossiped times."""
    return {name: value for name, value in reply.items() if name not in ("$clusterTime", "operationTime")}
