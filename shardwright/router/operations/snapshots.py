"""The time at which an operation reads a collection, if it reads a snapshot."""

from dataclasses import dataclass
from typing import Final

from bson.timestamp import Timestamp

from shardwright.router.operations.operation import Operation
from shardwright.router.reads.read_concern import snapshot_time
from shardwright.sharding.routing_table import RoutingTable


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The time of a snapshot.

    Attributes:
        targeting: for choosing shards: the owners at that time; None outside snapshots, or if there is only one shard.
        reading: what the command has to say to the shards, and the reply to the client. In a transaction, nothing: the
            shards know the time since the transaction has begun there.
    """

    targeting: Timestamp | None = None
    reading: Timestamp | None = None


_NONE: Final = Snapshot()


def snapshot_of(operation: Operation, table: RoutingTable | None) -> Snapshot:
    """The snapshot in which an operation reads a collection.

    Args:
        operation: the read.
        table: of the collection, None if it is not sharded.
    """
    clock = operation.context.clock.time.cluster_time
    if operation.transaction is not None:
        time = operation.transaction.choose_time(clock)
        return _NONE if time is None or table is None else Snapshot(targeting=time)
    time = snapshot_time(operation.request, table, clock)
    return _NONE if time is None else Snapshot(time, time)
