"""What a router process counts: shards that operations target, refreshes of the session cache, shared counts.

All processes of a router share the counts of fail points: one that is on three times is not on three times in each.
"""

import fcntl
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any, Final

import trio
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

    def by_command_and_part(self) -> dict[tuple[str, ...], float]:
        """All counts, by command and by ``allShards``, ``manyShards``, ``oneShard`` or ``unsharded``."""
        return {(command, part): number for command, counts in self._counts.items() for part, number in counts.items()}

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


@dataclass(slots=True)
class SessionJobs:
    """Counts of refreshes, and what the last one did.

    Attributes:
        turn: held by the refresh that is at work.
    """

    turn: trio.Lock = field(default_factory=trio.Lock)
    count: int = 0
    finished: float = 0.0
    milliseconds: int = 0
    refreshed: int = 0
    ended: int = 0
    cursors_closed: int = 0

    def record(self, now: float, seconds: float, *, refreshed: int, ended: int, cursors_closed: int) -> None:
        """Count a refresh.

        Args:
            now: when it ended, in seconds since 1970.
            seconds: how long it took.
            refreshed: sessions whose last use was written.
            ended: sessions that were deleted because their clients had ended them.
            cursors_closed: cursors of sessions that are gone.
        """
        self.count += 1
        self.finished = now
        self.milliseconds = int(seconds * 1000)
        self.refreshed, self.ended, self.cursors_closed = refreshed, ended, cursors_closed

    def document(self, sessions: int) -> dict[str, Any]:
        """The section ``logicalSessionRecordCache``.

        Args:
            sessions: how many there are now.
        """
        never = datetime.fromtimestamp(0, UTC)
        return {
            "activeSessionsCount": sessions,
            "sessionsCollectionJobCount": self.count,
            "lastSessionsCollectionJobDurationMillis": self.milliseconds,
            "lastSessionsCollectionJobTimestamp": datetime.fromtimestamp(self.finished, UTC),
            "lastSessionsCollectionJobEntriesRefreshed": self.refreshed,
            "lastSessionsCollectionJobEntriesEnded": self.ended,
            "lastSessionsCollectionJobCursorsClosed": self.cursors_closed,
            # A router has no transactions to reap.
            "transactionReaperJobCount": 0,
            "lastTransactionReaperJobDurationMillis": 0,
            "lastTransactionReaperJobTimestamp": never,
            "lastTransactionReaperJobEntriesCleanedUp": 0,
            "sessionCatalogSize": 0,
        }


class SharedCounts:
    """Counts by name.

    Args:
        directory: a directory that the router's processes share; None for a router of one process.
    """

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory

    def reset(self, name: str) -> None:
        """Begin to count at 0 again, in all processes."""
        path = self._path(name)
        if path is not None:
            path.write_bytes(b"0")

    def counter(self, name: str) -> Callable[[], int]:
        """A function that returns 0 when any of the processes calls it first, then 1, and so on."""
        path = self._path(name)
        return count().__next__ if path is None else lambda: _next(path)

    def _path(self, name: str) -> Path | None:
        return None if self._directory is None else self._directory / f"count-{name}"


def _next(path: Path) -> int:
    with path.open("r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        number = int(file.read())
        file.seek(0)
        file.write(str(number + 1).encode())
        return number
