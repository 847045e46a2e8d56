"""The times in the messages of the config servers: their vector clock is their mongod's."""

from collections.abc import Mapping
from typing import Any

from shardwright.configd.catalog.transactions import Commands
from shardwright.sharding.clock import CLUSTER_TIME, CONFIG_TIME, TOPOLOGY_TIME
from shardwright.wire.errors import BackendError, CommandError

_CLUSTER_TIME = CLUSTER_TIME.decode()


async def gossip(mongod: Commands, told: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The times of one moment; empty if mongod has stepped down or is gone.

    The config time is the time up to which the catalog is majority-committed: the operation time of a majority read.
    The topology time is the latest in ``config.shards``.

    Args:
        mongod: the primary.
        told: the ``$clusterTime`` of the request that is answered, to which mongod is advanced first.
    """
    find: dict[str, Any] = {
        "find": "shards",
        "sort": {"topologyTime": -1},
        "projection": {"topologyTime": 1},
        "limit": 1,
        "singleBatch": True,
        "readConcern": {"level": "majority"},
    }
    if told is not None:
        find[_CLUSTER_TIME] = told
    try:
        reply = await mongod.command("config", find)
    except (BackendError, CommandError):
        return {}  # the command has been executed, and its reply matters more
    times = {_CLUSTER_TIME: reply[_CLUSTER_TIME], CONFIG_TIME.decode(): reply["operationTime"]}
    for shard in reply["cursor"]["firstBatch"]:
        if "topologyTime" in shard:
            times[TOPOLOGY_TIME.decode()] = shard["topologyTime"]
    return times
