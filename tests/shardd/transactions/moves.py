"""Moves of a range in which transactions are open."""

from tests.integration.raw_client import raw_client
from tests.shardd.router_stand_in import ShardedNamespace

LOW, HIGH = {"a": 10}, {"a": 20}
"""The range, which belongs to ``sh0`` at first."""


def try_move(ranged: ShardedNamespace) -> int:
    """Move the range to ``sh1``; returns the error code, 0 without one."""
    ranged.split([HIGH], low=LOW)
    move = {"_configsvrMoveRange": ranged.namespace, "toShard": "sh1", "min": LOW, "max": HIGH}
    with raw_client(ranged.cluster.config.members[0].address) as config:
        config.socket.settimeout(120)
        return int(config.command({**move, "writeConcern": {"w": "majority"}}).get("code", 0))
