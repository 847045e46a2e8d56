"""The ownership filter for reads at a past time (``atClusterTime``), which hides the orphans of that time.

Such a read returns the data of that time, so it is filtered by the ownership of that time. The ranges that could hold
orphans are read from ``config.rangeDeletions`` at the same time, on the same mongod. A reader that could see an orphan
therefore also sees its range deletion. Documents that were migrated and deleted since remain visible, because mongod
keeps them as long as it serves reads at that time.
"""

from typing import Final

from bson.timestamp import Timestamp

from shardwright.daemon.sidecar.noop_writer import READ_CONCERN
from shardwright.shardd.orphans.ownership_filter import OwnershipFilter
from shardwright.shardd.orphans.range_deletion_tasks import orphan_ranges
from shardwright.shardd.range_deleter.range_deletions import RangeDeletions
from shardwright.sharding.routing_table import RoutingTable
from shardwright.wire.rawbson import decode_document
from shardwright.wire.request import Request

_AT_TIME: Final = b"atClusterTime"


def snapshot_time(request: Request) -> Timestamp | None:
    """Return the past time at which a request reads; None if it reads the present."""
    raw = request.raw_object(READ_CONCERN)
    if raw is None or _AT_TIME not in raw:
        return None
    concern = decode_document(raw)
    time = concern.get("atClusterTime")
    return time if concern.get("level") == "snapshot" and isinstance(time, Timestamp) else None


async def ownership_at(
    range_deletions: RangeDeletions, table: RoutingTable, shard: str, time: Timestamp
) -> OwnershipFilter | None:
    """Return the filter for a read at a time; None if there were no orphans.

    Args:
        table: the routing table whose version the read was admitted with.

    Raises:
        CommandError: StaleChunkHistory, the history of the chunks does not reach back that far; SnapshotTooOld, the
            history of the data does not; or mongod cannot read at that time for another reason.
        BackendError: mongod does not answer.
    """
    tasks = await range_deletions.tasks_at(str(table.namespace), time)
    ranges = orphan_ranges(tasks, table, shard, time)
    return OwnershipFilter(table.key_pattern, ranges, table.collection.default_collation) if ranges else None
