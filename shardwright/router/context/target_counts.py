"""How many shards operations are sent to (``shardingStatistics.numHostsTargeted`` of ``serverStatus``)."""

from collections.abc import Collection
from typing import Final

from bson.int64 import Int64

from shardwright.sharding.routing_table import RoutingTable

_COUNTED: Final = ("find", "insert", "update", "delete", "aggregate")
_ALL, _MANY, _ONE, _UNSHARDED = "allShards", "manyShards", "oneShard", "unsharded"


class TargetCounts:
    """Successful reads and writes by the part of a collection's owners that they were sent to.

    As in MongoDB one shard counts as one also if it is the only owner, and a write that goes to all shards of the
    cluster, owners or not, as one to all.

    Attributes:
        updates_by_id: updates of one document that were sent to all shards, since its ``_id`` alone was given.
    """

    def __init__(self) -> None:
        self.updates_by_id = 0
        self._counts = {command: dict.fromkeys((_ALL, _MANY, _ONE, _UNSHARDED), 0) for command in _COUNTED}

    def note(self, command: str, targeted: Collection[str], table: RoutingTable | None) -> None:
        """Count an operation.

        Args:
            command: the name of its command, which may be one that is not counted.
            targeted: the shards it was sent to; if there are none, it is not counted.
            table: the routing table by which it was sent; None if it was not about a sharded collection.
        """
        counts = self._counts.get(command)
        if counts is not None and targeted:
            counts[_part(targeted, table)] += 1

    def series(self, command: str, table: RoutingTable | None) -> tuple[dict[str, int], str] | None:
        """The counts of a command, and the one among them for operations on one shard; None if it is not counted."""
        counts = self._counts.get(command)
        return None if counts is None else (counts, _UNSHARDED if table is None else _ONE)

    def document(self) -> dict[str, dict[str, Int64]]:
        """The section as ``serverStatus`` has it."""
        return {
            command: {part: Int64(count) for part, count in counts.items()} for command, counts in self._counts.items()
        }


def _part(targeted: Collection[str], table: RoutingTable | None) -> str:
    if table is None:
        return _UNSHARDED
    if len(targeted) == 1:
        return _ONE
    return _ALL if len(set(targeted)) >= len(table.shards) else _MANY
