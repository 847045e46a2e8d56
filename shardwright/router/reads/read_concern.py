"""``readConcern`` of reads of sharded collections: snapshots, whose one time the router chooses for all shards."""

import time as wall_clock
from typing import Any, Final

from bson.timestamp import Timestamp

from shardwright.sharding.clock import CLUSTER_TIME, signed_cluster_time
from shardwright.sharding.routing_table import RoutingTable
from shardwright.sharding.timestamps import unpack_timestamp
from shardwright.wire import rawbson
from shardwright.wire.rawbson import append, decode_document, encode_elements, without
from shardwright.wire.request import Request

READ_CONCERN: Final = b"readConcern"
_TIMES_OF_CLIENTS: Final = (b"atClusterTime", b"afterClusterTime")


def is_snapshot(request: Request) -> bool:
    """Whether the read concern level is snapshot."""
    return _snapshot_concern(request) is not None


def snapshot_time(request: Request, table: RoutingTable | None, clock: int) -> Timestamp | None:
    """The cluster time at which a read of a sharded collection reads, if its level is snapshot; None for any other.

    It is ``atClusterTime`` if the client names it. If not, it is the newest time that the router knows, which is not
    before the client's ``afterClusterTime``, nor before a move that the routing table shows: the recipient may have
    taken writes since that a snapshot from before would miss.

    Args:
        request: the client's command.
        table: of the collection, None if it is not sharded.
        clock: the newest cluster time known, packed; 0 if there is none.
    """
    if table is None or READ_CONCERN not in request.fields:
        return None
    concern = _snapshot_concern(request)
    if concern is None:
        return None
    if "atClusterTime" in concern:
        # What is no time, or comes with another time, is for the shard to refuse.
        time = concern["atClusterTime"]
        return time if isinstance(time, Timestamp) and "afterClusterTime" not in concern else None
    newest = unpack_timestamp(max(clock, table.newest_valid_after))
    after = concern.get("afterClusterTime", newest)
    return max(newest, after) if isinstance(after, Timestamp) else None


def at_time(body: bytes, time: Timestamp | None, clock: int) -> bytes:
    """A command that makes a shard read at a time; the same command without a time.

    Args:
        body: of the command.
        time: as `snapshot_time` says.
        clock: the newest cluster time known, packed.
    """
    if time is None:
        return body
    # A mongod refuses to read at a time that it has not heard of, so it is told of one that is not before.
    told = time if _may_be_told(body, time) else Timestamp(0, 0)
    elements = {
        "readConcern": {"level": "snapshot", "atClusterTime": time},
        "$clusterTime": signed_cluster_time(max(told, unpack_timestamp(clock))),
    }
    return append(without(body, (READ_CONCERN, CLUSTER_TIME)), encode_elements(elements))


def _may_be_told(body: bytes, time: Timestamp) -> bool:
    """Whether it is certain that a cluster time is not in the future.

    The time that a client names may be, and a cluster that was told of it would never come back from there. One that is
    not may be unknown here only because it was learnt from another router.
    """
    concern = rawbson.find(body, READ_CONCERN)
    names_time = concern is not None and any(rawbson.find(body, name, concern[2]) for name in _TIMES_OF_CLIENTS)
    return not names_time or time.time <= wall_clock.time()


def _snapshot_concern(request: Request) -> dict[str, Any] | None:
    raw = request.raw_object(READ_CONCERN)
    concern = None if raw is None else decode_document(raw)
    return concern if concern is not None and concern.get("level") == "snapshot" else None
