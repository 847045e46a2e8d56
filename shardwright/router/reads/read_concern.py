"""``readConcern`` of reads of sharded collections. The router chooses the common time of a snapshot on all shards."""

import time as wall_clock
from typing import Any, Final

from bson.timestamp import Timestamp

from shardwright.sharding.clock import CLUSTER_TIME, signed_cluster_time
from shardwright.sharding.cluster_time import unpack_timestamp
from shardwright.sharding.routing_table import RoutingTable
from shardwright.sharding.transaction_protocol import concern_at, demanded_time
from shardwright.wire import rawbson
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import append, decode_document, decode_value, encode_elements, without
from shardwright.wire.request import Request

READ_CONCERN: Final = b"readConcern"
_TIMES_OF_CLIENTS: Final = (b"atClusterTime", b"afterClusterTime")
_BOTH_TIMES: Final = {each.decode() for each in _TIMES_OF_CLIENTS}


def is_snapshot(request: Request) -> bool:
    """Whether the read concern level is snapshot."""
    return _snapshot_concern(request) is not None


def snapshot_time(request: Request, table: RoutingTable | None, clock: int) -> Timestamp | None:
    """Return the cluster time of a snapshot read of a sharded collection; None for any other read.

    It is the client's ``atClusterTime``, if given. Otherwise it is the newest time that the router has seen. That is
    never before the client's ``afterClusterTime`` or a migration in the routing table, whose recipient may have
    accepted writes that an earlier snapshot would miss.

    Args:
        table: of the collection, None if it is unsharded.
        clock: the newest cluster time seen, packed; 0 if there is none.

    Raises:
        CommandError: InvalidOptions, both ``atClusterTime`` and ``afterClusterTime`` are given.
    """
    if table is None or READ_CONCERN not in request.fields:
        return None
    concern = _snapshot_concern(request)
    if concern is None:
        return None
    if concern.keys() >= _BOTH_TIMES:
        raise CommandError(
            ErrorCode.InvalidOptions,
            "Specifying a timestamp for readConcern snapshot in a causally consistent session is not allowed. See "
            "https://docs.mongodb.com/manual/core/read-isolation-consistency-recency/#causal-consistency",
        )
    return demanded_time(concern, unpack_timestamp(max(clock, table.newest_valid_after)))


def at_time(body: bytes, time: Timestamp | None, clock: int) -> bytes:
    """Make a command read at a time; return it unchanged without a time.

    Args:
        time: from `snapshot_time`.
        clock: the newest cluster time seen, packed.
    """
    if time is None:
        return body
    # A mongod refuses to read at a time later than its cluster time, so the command gossips a time that is not earlier.
    told = time if _may_be_told(body, time) else Timestamp(0, 0)
    concern = rawbson.find(body, READ_CONCERN)
    elements = {
        "readConcern": concern_at({} if concern is None else decode_value(body, concern), time),
        "$clusterTime": signed_cluster_time(max(told, unpack_timestamp(clock))),
    }
    return append(without(body, (READ_CONCERN, CLUSTER_TIME)), encode_elements(elements))


def _may_be_told(body: bytes, time: Timestamp) -> bool:
    """Whether a cluster time is certain not to be in the future.

    A client's time may be in the future, and gossiping it would permanently advance the whole cluster's clock. A valid
    time may be unknown here, because the client may have received it from another router.
    """
    concern = rawbson.find(body, READ_CONCERN)
    names_time = concern is not None and any(rawbson.find(body, name, concern[2]) for name in _TIMES_OF_CLIENTS)
    return not names_time or time.time <= wall_clock.time()


def _snapshot_concern(request: Request) -> dict[str, Any] | None:
    span = request.fields.get(READ_CONCERN)
    concern = None if span is None else decode_document(request.raw(span))
    return concern if concern is not None and concern.get("level") == "snapshot" else None
