"""Counters of a router process: targeted shards, refreshes of the session cache, counts shared between processes.

All processes of a router share the counts of fail points, so that ``times: 3`` means three times in total.
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
    """Successful reads and writes by the share of a collection's owners that they targeted.

    As in MongoDB, an operation on the only owner counts as one on one shard. A write to all shards of the cluster,
    owners or not, counts as one to all.

    Attributes:
        updates_by_id: single-document updates by ``_id`` alone, which were broadcast.
    """

    def __init__(self) -> None:
        self.updates_by_id = 0
        self._counts = {command: dict.fromkeys((_ALL, _MANY, _ONE, _UNSHARDED), 0) for command in _COUNTED}

    def note(self, command: str, targeted: Collection[str], table: RoutingTable | None) -> None:
        """Count an operation.

        Args:
            command: the name of its command; commands without counters are ignored.
            targeted: the shards it was sent to; if empty, it is not counted.
            table: the routing table it was sent by; None for an unsharded collection.
        """
        counts = self._counts.get(command)
        if counts is not None and targeted:
            counts[_part(targeted, table)] += 1

    def series(
        self, command: str, targeted: Collection[str], table: RoutingTable | None
    ) -> tuple[dict[str, int], str] | None:
        """Return a command's counts and the key of an operation among them; None if it is not counted."""
        counts = self._counts.get(command)
        return None if counts is None else (counts, _part(targeted, table))

    def by_command_and_part(self) -> dict[tuple[str, ...], float]:
        """Return all counts, by command and by ``allShards``, ``manyShards``, ``oneShard`` or ``unsharded``."""
        return {(command, part): number for command, counts in self._counts.items() for part, number in counts.items()}

    def document(self) -> dict[str, dict[str, Int64]]:
        """Return the section of ``serverStatus``."""
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
    """The number of session refreshes, and the results of the last one.

    Attributes:
        turn: held by the refresh in progress.
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
            now: the end of the refresh, in seconds since 1970.
            refreshed: sessions whose last use was written.
            ended: sessions that were deleted because their clients had ended them.
            cursors_closed: cursors of expired sessions.
        """
        self.count += 1
        self.finished = now
        self.milliseconds = int(seconds * 1000)
        self.refreshed, self.ended, self.cursors_closed = refreshed, ended, cursors_closed

    def document(self, sessions: int) -> dict[str, Any]:
        """Return the section ``logicalSessionRecordCache``."""
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
    """Counters by name, shared between the processes of a router.

    Args:
        directory: a directory that the router's processes share; None for a router of one process.
    """

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory

    def reset(self, name: str) -> None:
        """Restart a counter at 0, in all processes."""
        path = self._path(name)
        if path is not None:
            path.write_bytes(b"0")

    def counter(self, name: str) -> Callable[[], int]:
        """Return a function that returns 0 at the first call in any of the processes, then 1, and so on."""
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
