"""Sending commands to shards, including this one, as a coordinator or a donor does."""

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
        context: this shard daemon's context.
        shard_id: the shard, which may be this one.
        db: the database to run it on.
        command: the command.
        may_be_cached: whether the shard's hosts may be those that were read earlier in this term.

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
    """Run a command on several shards concurrently; returns the replies by shard id.

    Raises:
        CommandError: if any failed, the error of the one with the lowest id; all of them have been sent the command.
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
    """What shards have answered, by their hosts in place of their ids, as ``raw`` shows it.

    The list of shards is read now: one of them may have been added while the others were asked. One that has been
    removed since keeps its id.
    """
    shards = await (await context.catalog()).shards()
    return {shards[each].host if each in shards else each: answers[each] for each in sorted(answers)}


async def all_shard_ids(context: ShardContext) -> list[str]:
    """The ids of all shards of the cluster, sorted."""
    catalog = await context.catalog()
    return sorted(await catalog.shards())
