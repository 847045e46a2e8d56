"""The numbers of cursors in ``serverStatus`` (``metrics.cursor``) and the metrics."""

from collections.abc import Collection
from dataclasses import dataclass

from shardwright.router.cursors.open_cursor import OpenCursor


@dataclass(frozen=True, slots=True)
class CursorStatistics:
    """Cursors open now, and those opened and timed out since the router started."""

    open_total: int
    open_pinned: int
    open_no_timeout: int
    open_single_shard: int
    open_multiple_shards: int
    open_of_closed_connections: int
    opened: int
    timed_out: int

    @classmethod
    def of(cls, cursors: Collection[OpenCursor], *, opened: int, timed_out: int) -> "CursorStatistics":
        """Count open cursors."""
        multiple = sum(len(each.cursor.remotes) > 1 for each in cursors)
        return cls(
            open_total=len(cursors),
            open_pinned=sum(each.is_checked_out for each in cursors),
            open_no_timeout=sum(each.is_immortal for each in cursors),
            open_single_shard=len(cursors) - multiple,
            open_multiple_shards=multiple,
            open_of_closed_connections=sum(
                each.client is not None and each.client.stream.is_closed for each in cursors
            ),
            opened=opened,
            timed_out=timed_out,
        )
