"""The refreshes of the session cache: whose turn it is, and what they have done, for ``serverStatus``."""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import trio


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
