"""``readConcern`` of reads of sharded collections: snapshots, whose one time the router chooses for all shards."""

from typing import Any, Final

from bson.timestamp import Timestamp

from sharding.clock import CLUSTER_TIME, signed_cluster_time
from sharding.routing_table import RoutingTable
from sharding.timestamps import unpack_timestamp
from wire.rawbson import append, decode_document, encode_elements, without
from wire.request import Request

READ_CONCERN: Final = b"readConcern"


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
    elements = {
        "readConcern": {"level": "snapshot", "atClusterTime": time},
        "$clusterTime": signed_cluster_time(max(time, unpack_timestamp(clock))),
    }
    return append(without(body, (READ_CONCERN, CLUSTER_TIME)), encode_elements(elements))


def _snapshot_concern(request: Request) -> dict[str, Any] | None:
    raw = request.raw_object(READ_CONCERN)
    concern = None if raw is None else decode_document(raw)
    return concern if concern is not None and concern.get("level") == "snapshot" else None
