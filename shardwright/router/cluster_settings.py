"""Cluster settings that a router reads from the config servers at regular intervals."""

from typing import Final

import trio

from shardwright.router.context.router_context import RouterContext
from shardwright.router.replies.shard_reply import answer_in
from shardwright.sharding.catalog.reads import read_chunk_size

_INTERVAL_SECONDS: Final = 30.0
"""As in mongos, which may use the previous default concerns for this long."""


async def refresh_cluster_settings(context: RouterContext) -> None:
    """Read the default read and write concerns and the chunk size until cancelled."""

    async def refresh() -> None:
        context.default_concerns.take(answer_in(await context.catalog.command({"getDefaultRWConcern": 1})))
        context.chunk_bytes_max = await context.catalog.read(read_chunk_size())

    while True:
        await context.catalog.attempt(refresh)
        await trio.sleep(_INTERVAL_SECONDS)
