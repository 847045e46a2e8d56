"""Commands from a coordinator or donor to shards, including this one."""

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import trio

from shardwright.shardd.context.shard_context import ShardContext
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import BackendError, CommandError

Answer = TypeVar("Answer")


async def send_to_shard(
    context: ShardContext, shard_id: str, db: str, command: Mapping[str, Any], *, may_be_cached: bool = False
) -> dict[str, Any]:
    """Run an idempotent command on the primary of a shard.

    Args:
        shard_id: the shard, which may be this one.
        may_be_cached: whether hosts read earlier in this term will do.

    Raises:
        CommandError: HostUnreachable, ShardNotFound, or the shard's error.
    """
    client = await context.shard_client(shard_id, may_be_cached=may_be_cached)
    try:
        reply = await client.command(db, {**command, **context.config_times.gossip()})
    except BackendError as error:
        raise CommandError(ErrorCode.HostUnreachable, f"could not reach shard {shard_id}: {error}") from error
    context.config_times.observe_reply(reply)
    return reply


async def send_to_shards(
    context: ShardContext, shard_ids: Iterable[str], db: str, command: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """Run a command on several shards concurrently; return the replies by shard id.

    All shards are sent the command. If any failed, the error of the one with the lowest id is raised.
    """
    replies: dict[str, dict[str, Any]] = {}
    errors: dict[str, CommandError] = {}

    async def send(shard_id: str) -> None:
        try:
            replies[shard_id] = await send_to_shard(context, shard_id, db, command)
        except CommandError as error:
            errors[shard_id] = error

    async with trio.open_nursery() as nursery:
        for shard_id in shard_ids:
            nursery.start_soon(send, shard_id)
    for shard_id in sorted(errors):
        raise errors[shard_id]
    return replies


async def send_to_other_shards(context: ShardContext, db: str, command: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Run a command on all other shards of the cluster; see `send_to_shards`."""
    me = context.require_identity().shard_name
    return await send_to_shards(context, [each for each in await all_shard_ids(context) if each != me], db, command)


async def by_hosts(context: ShardContext, answers: Mapping[str, Answer]) -> dict[str, Answer]:
    """Return shards' answers by their hosts instead of their ids, as in ``raw``.

    The shards are read after the answers, because a shard may have been added since. A removed shard keeps its id.
    """
    shards = await (await context.catalog()).shards()
    return {shards[each].host if each in shards else each: answers[each] for each in sorted(answers)}


async def all_shard_ids(context: ShardContext) -> list[str]:
    """Return the ids of all shards of the cluster, sorted."""
    catalog = await context.catalog()
    return sorted(await catalog.shards())
