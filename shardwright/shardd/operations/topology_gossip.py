"""Telling routers that a shard was added or removed since they read the list of shards.

A statement that may concern any shard goes to all of them, and none checks versions. So a router whose list is old
would leave out a shard that has been given a part of the collection since. Whoever gave it that part knows of that
shard; so it reports in its reply, as genuine servers do with all replies, when the set of shards has changed.
"""

from collections.abc import Awaitable, Callable

from shardwright.shardd.context.shard_context import ShardContext
from shardwright.sharding.clock import TOPOLOGY_TIME, VectorTime, topology_time_element
from shardwright.sharding.versions import IGNORED, SHARD_VERSION
from shardwright.wire.message import OpMsg, op_msg
from shardwright.wire.rawbson import append
from shardwright.wire.request import Request


def is_for_all_shards(request: Request) -> bool:
    """Whether a request goes to all shards that its sender knows, and says when those were all there are."""
    fields = request.fields
    if TOPOLOGY_TIME not in fields or SHARD_VERSION not in fields:
        return False
    _, _, start, end = fields[SHARD_VERSION]
    return request.body[start:end] == IGNORED.raw


async def run_telling(
    context: ShardContext, request: Request, run: Callable[[], Awaitable[bytes | None]]
) -> bytes | None:
    """Run a request that `is_for_all_shards`; the reply says so if there are other shards than its sender knows.

    Args:
        shard: this one.
        request: the request.
        run: executes it and returns the frame of the reply, None if there is to be none.

    Raises:
        CommandError: TypeMismatch, the time is malformed; the list of shards is not known here either, and the config
            servers did not answer; what ``run`` raises.
    """
    context.config_times.observe(request)
    known = VectorTime.from_message(request.body, request.fields).topology_time
    catalog = await context.catalog()
    if not catalog.knows_shards:
        await catalog.shards()
    reply = await run()
    # As of now: documents that have left while the request waited are not changed by it.
    if reply is None or catalog.topology_time <= known:
        return reply
    message = OpMsg(reply)
    body = append(message.body, topology_time_element(catalog.topology_time))
    return op_msg(body, request_id=message.request_id, response_to=message.response_to)
