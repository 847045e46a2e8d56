"""Reporting to routers that a shard was added or removed since they read the list of shards.

A statement that may concern any shard is sent to all of them, and none checks versions. So a router with an old list
would leave out a new shard that has received part of the collection since. But that part's donor knows the new shard,
and its reply reports when the set of shards last changed, as all replies of genuine servers do.
"""

from collections.abc import Awaitable, Callable

from shardwright.shardd.context.shard_context import ShardContext
from shardwright.sharding.clock import TOPOLOGY_TIME, VectorTime, topology_time_element
from shardwright.sharding.versions import IGNORED, SHARD_VERSION
from shardwright.wire.message import OpMsg, with_body
from shardwright.wire.rawbson import append
from shardwright.wire.request import Request


def is_for_all_shards(request: Request) -> bool:
    """Whether a request was sent to all shards that its sender knows, with the ``$topologyTime`` of that list."""
    fields = request.fields
    if TOPOLOGY_TIME not in fields or SHARD_VERSION not in fields:
        return False
    _, _, start, end = fields[SHARD_VERSION]
    return request.body[start:end] == IGNORED.raw


async def run_with_topology_time(
    context: ShardContext, request: Request, run: Callable[[], Awaitable[bytes | None]]
) -> bytes | None:
    """Run a request that `is_for_all_shards`; if the sender's list of shards is old, the reply has ``$topologyTime``.

    Args:
        context: this shard daemon's context.
        request: the request.
        run: executes it and returns the frame of the reply, None if there is no reply.

    Raises:
        CommandError: TypeMismatch, the time is malformed; this shard does not know the list of shards either, and the
            config servers did not answer; or raised by ``run``.
    """
    context.config_times.observe(request)
    known = VectorTime.from_message(request.body, request.fields).topology_time
    catalog = await context.catalog()
    if not catalog.knows_shards:
        await catalog.shards()
    reply = await run()
    # The time after the run counts: documents that left while the request waited were not changed by it.
    if reply is None or catalog.topology_time <= known:
        return reply
    return with_body(reply, append(OpMsg(reply).body, topology_time_element(catalog.topology_time)))
