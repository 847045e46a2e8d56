"""Making shards refresh what they know of a collection after a change of its entry."""

from collections.abc import Iterable
from typing import Final

import trio

from shardwright.configd.primary.primary import Primary
from shardwright.sharding.catalog.shard_entry import ShardEntry
from shardwright.wire.errors import CommandError

_MAJORITY: Final = {"w": "majority", "wtimeout": 60_000}


async def refresh_shards(primary: Primary, namespace: str, owners: Iterable[str]) -> None:
    """Make shards refresh a collection, all at the same time.

    Raises:
        CommandError: the error of the first shard, by name, that failed; the command was sent to all.
    """
    flush = {
        "_flushRoutingTableCacheUpdatesWithWriteConcern": namespace,
        "syncFromConfig": True,
        "writeConcern": _MAJORITY,
    }
    errors: dict[str, CommandError] = {}

    async def tell(shard: ShardEntry) -> None:
        try:
            await primary.shards.command(shard, "admin", flush)
        except CommandError as error:
            errors[shard.id] = error

    shards = [await primary.catalog.shard(shard_id) for shard_id in owners]
    async with trio.open_nursery() as nursery:
        for shard in shards:
            nursery.start_soon(tell, shard)
    for shard_id in sorted(errors):
        raise errors[shard_id]
