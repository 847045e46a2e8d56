"""Gossip to routers that a shard was added or removed since they read the shard list.

A statement that may concern any shard is sent to all of them without a version check. A router with an old list would
omit a new shard, which may have received part of the collection since. The donor of that part has the new shard in its
list. Its reply includes the time of the last change of the shard list, as all replies of genuine servers do.
"""

from collections.abc import Awaitable, Callable

from shardwright.shardd.context.shard_context import ShardContext
from shardwright.sharding.clock import TOPOLOGY_TIME, VectorTime, topology_time_element
from shardwright.sharding.versions import IGNORED, SHARD_VERSION
from shardwright.wire.message import OpMsg, with_body
from shardwright.wire.rawbson import append
from shardwright.wire.request import Request


def is_for_all_shards(request: Request) -> bool:
    """Whether a request was sent to all shards in its sender's list, with that list's ``$topologyTime``."""
    fields = request.fields
    if TOPOLOGY_TIME not in fields or SHARD_VERSION not in fields:
        return False
    _, _, start, end = fields[SHARD_VERSION]
    return request.body[start:end] == IGNORED.raw


async def run_with_topology_time(
    context: ShardContext, request: Request, run: Callable[[], Awaitable[bytes | None]]
) -> bytes | None:
    """Run a request that `is_for_all_shards`; add ``$topologyTime`` to the reply if the sender's shard list is old.

    Args:
        run: runs it and returns the reply frame, None if there is no reply.

    Raises:
        CommandError: TypeMismatch, the time is malformed; the config servers did not answer and the shard list is not
            cached; or raised by ``run``.
    """
    context.config_times.observe(request)
    known = VectorTime.from_message(request.body, request.fields).topology_time
    catalog = await context.catalog()
    if not catalog.knows_shards:
        await catalog.shards()
    reply = await run()
    # The time is read after the run: the request skipped documents that left while it waited.
    if reply is None or catalog.topology_time <= known:
        return reply
    return with_body(reply, append(OpMsg(reply).body, topology_time_element(catalog.topology_time)))
