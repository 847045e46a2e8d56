"""The vector clock of a node: three times gossiped in messages between nodes, and partly in messages to clients.

Nodes keep the highest time of each kind that they have seen. A read after ``configTime`` therefore sees all placement
that its sender has seen, and a read after ``clusterTime`` is causally consistent.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from struct import Struct
from typing import Any, Final

from bson.binary import Binary
from bson.int64 import Int64
from bson.timestamp import Timestamp

from shardwright.sharding.cluster_time import DUMMY_SIGNATURE_ELEMENT, HASH_BYTES, pack_timestamp, unpack_timestamp
from shardwright.wire import rawbson
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.message import BODY_AT
from shardwright.wire.request import Request

CLUSTER_TIME: Final = b"$clusterTime"
CONFIG_TIME: Final = b"$configTime"
TOPOLOGY_TIME: Final = b"$topologyTime"

OPERATION_TIME: Final = b"operationTime"

_unpack_uint64: Final = Struct("<Q").unpack_from
_pack_uint64: Final = Struct("<Q").pack

# In ``{clusterTime: Timestamp, …}`` the time follows the length, a type byte and the name.
_TIME_NAME: Final = b"\x11clusterTime\0"
_TIME_AT: Final = 4 + len(_TIME_NAME)

_CLUSTER_TIME_NAME: Final = rawbson.element(CLUSTER_TIME, rawbson.OBJECT, b"")

# The bytes of the element ``$clusterTime`` before and after the time: every request between nodes has one.
_BEFORE_TIME, _BEHIND_TIME = rawbson.element(
    CLUSTER_TIME, rawbson.OBJECT, rawbson.from_elements(_TIME_NAME + bytes(8) + DUMMY_SIGNATURE_ELEMENT)
).split(_TIME_NAME + bytes(8))
_BEFORE_TIME += _TIME_NAME

_DUMMY_HASH: Final = Binary(bytes(HASH_BYTES))


@dataclass(frozen=True, slots=True)
class VectorTime:
    """One reading of a vector clock; the times are packed, see `pack_timestamp`, and 0 when unknown.

    Args:
        cluster_time: the logical time of the cluster, which writes advance.
        config_time: a time at which the majority of the config server had all placement that the sender has seen.
        topology_time: the cluster time at which a shard was last added or removed.
    """

    cluster_time: int = 0
    config_time: int = 0
    topology_time: int = 0

    def joined(self, other: "VectorTime") -> "VectorTime":
        """Return the later of each time; the same object if ``other`` has nothing newer."""
        if (
            other.cluster_time <= self.cluster_time
            and other.config_time <= self.config_time
            and other.topology_time <= self.topology_time
        ):
            return self
        return VectorTime(
            max(self.cluster_time, other.cluster_time),
            max(self.config_time, other.config_time),
            max(self.topology_time, other.topology_time),
        )

    @property
    def components(self) -> tuple[int, int, int]:
        """The three times."""
        return self.cluster_time, self.config_time, self.topology_time

    def ordered(self) -> "VectorTime":
        """Return the reading with ClusterTime ≥ ConfigTime ≥ TopologyTime; the same object if it already is.

        Every time in a message was a cluster time of some node, so the other times have reached it too.
        """
        if self.cluster_time >= self.config_time >= self.topology_time:
            return self
        config_time = max(self.config_time, self.topology_time)
        return VectorTime(max(self.cluster_time, config_time), config_time, self.topology_time)

    @classmethod
    def from_message(cls, document: bytes, fields: Mapping[bytes, rawbson.Span]) -> "VectorTime":
        """Read the times that a request or reply gossips, given its body and `rawbson.index`.

        Raises:
            CommandError: TypeMismatch, a field is of the wrong type; NoSuchKey, a ``$clusterTime`` without the time.
        """
        return cls(
            _read_cluster_time(document, fields[CLUSTER_TIME]) if CLUSTER_TIME in fields else 0,
            _read_timestamp(document, CONFIG_TIME, fields[CONFIG_TIME]) if CONFIG_TIME in fields else 0,
            _read_timestamp(document, TOPOLOGY_TIME, fields[TOPOLOGY_TIME]) if TOPOLOGY_TIME in fields else 0,
        )

    @classmethod
    def from_gossip(cls, reply: Mapping[str, Any]) -> "VectorTime":
        """Read the times in the decoded reply of another node."""
        cluster_time = reply.get("$clusterTime", {}).get("clusterTime")
        named = (cluster_time, reply.get("$configTime"), reply.get("$topologyTime"))
        return cls(*(0 if time is None else pack_timestamp(time) for time in named))

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> "VectorTime":
        """Read the times that a shard persisted in ``config.vectorClock``."""
        return cls(0, pack_timestamp(document["configTime"]), pack_timestamp(document["topologyTime"]))

    def to_document(self) -> dict[str, Any]:
        """Build the document of ``config.vectorClock``; the cluster time is in the oplog anyway."""
        return {
            "_id": "vectorClockState",
            "configTime": unpack_timestamp(self.config_time),
            "topologyTime": unpack_timestamp(self.topology_time),
        }

    def gossip(self) -> dict[str, Any]:
        """Build the fields for messages to other nodes, without unknown times."""
        fields: dict[str, Any] = {}
        if self.cluster_time:
            fields["$clusterTime"] = signed_cluster_time(unpack_timestamp(self.cluster_time))
        if self.config_time:
            fields["$configTime"] = unpack_timestamp(self.config_time)
        if self.topology_time:
            fields["$topologyTime"] = unpack_timestamp(self.topology_time)
        return fields

    def external_elements(self) -> bytes:
        """Build ``$clusterTime`` for clients, ready for `rawbson.append`; empty while the time is unknown."""
        if not self.cluster_time:
            return b""
        return _BEFORE_TIME + _pack_uint64(self.cluster_time) + _BEHIND_TIME

    def internal_elements(self) -> bytes:
        """Build all known times for other nodes, ready for `rawbson.append`."""
        elements = self.external_elements()
        if self.config_time:
            elements += config_time_element(self.config_time)
        if self.topology_time:
            elements += topology_time_element(self.topology_time)
        return elements


class VectorClock:
    """The clock of one node: the join of all observed times. Used by one thread only.

    The times of a message come from one reading. So the cluster time is never behind the config time, nor the config
    time behind the topology time.
    """

    __slots__ = ("_external", "_internal", "_named", "_time")

    _time: VectorTime
    _internal: bytes
    _external: bytes
    _named: bytes

    def __init__(self, time: VectorTime | None = None) -> None:
        self._reach(time or VectorTime())

    @property
    def time(self) -> VectorTime:
        """The current reading."""
        return self._time

    @property
    def internal_elements(self) -> bytes:
        """`VectorTime.internal_elements` of the current reading."""
        if not self._internal:
            self._internal = self._time.internal_elements()
        return self._internal

    def advance(self, seen: VectorTime) -> bool:
        """Advance to the times of a message where they are later; return whether any was."""
        joined = self._time.joined(seen).ordered()
        if joined is self._time:
            return False
        self._reach(joined)
        return True

    def observe(self, document: bytes, fields: Mapping[bytes, rawbson.Span]) -> None:
        """Advance to the times that another node gossips; nearly free if none of them is later."""
        time = self._time
        if (
            _is_cluster_time_after(document, fields.get(CLUSTER_TIME), time.cluster_time)
            or _is_after(document, CONFIG_TIME, fields.get(CONFIG_TIME), time.config_time)
            or _is_after(document, TOPOLOGY_TIME, fields.get(TOPOLOGY_TIME), time.topology_time)
        ):
            self.advance(VectorTime.from_message(document, fields))

    def observe_cluster_time(self, cluster_time: int) -> None:
        """Advance to a packed ``$clusterTime`` that another node gossiped without the other times."""
        time = self._time
        if cluster_time > time.cluster_time:  # this keeps the times ordered
            self._reach(VectorTime(cluster_time, time.config_time, time.topology_time))

    @property
    def external_elements(self) -> bytes:
        """`VectorTime.external_elements` of the current reading."""
        if not self._external:
            self._external = self._time.external_elements()
        return self._external

    @property
    def packed_cluster_time(self) -> bytes:
        """The 8 bytes of the cluster time as a BSON timestamp."""
        return self._named_cluster_time()[len(_TIME_NAME) :]

    def is_told_in(self, frame: bytes, end: int) -> bool:
        """Whether the body of a frame, up to ``end``, contains the name of the field, see `with_cluster_time`."""
        return frame.find(_CLUSTER_TIME_NAME, BODY_AT, end) >= 0

    def compare(self, document: bytes, at: int) -> int:
        """Compare the 8 bytes at a place with this clock's cluster time: negative if earlier, 0 if equal."""
        told: int = _unpack_uint64(document, at)[0]
        return told - self._time.cluster_time

    def is_at(self, document: bytes, span: rawbson.Span) -> bool:
        """Whether a ``$clusterTime`` in the usual form equals this clock's; one comparison of bytes."""
        return document.startswith(self._named_cluster_time(), span[2] + 4)

    def set_in(self, request: Request, span: rawbson.Span) -> None:
        """Overwrite an earlier ``$clusterTime`` of a request with this clock's, if it is in the usual form."""
        if request.body.startswith(_TIME_NAME, span[2] + 4):
            request.overwrite(span[2] + 4, self._named_cluster_time())

    def gossip(self) -> dict[str, Any]:
        """Build `VectorTime.gossip` of the current reading."""
        return self._time.gossip()

    def _reach(self, time: VectorTime) -> None:
        """Set the reading; its elements for messages are built on demand."""
        self._time = time
        self._internal = self._external = self._named = b""

    def _named_cluster_time(self) -> bytes:
        """Return the element ``clusterTime`` of the current reading."""
        if not self._named:
            self._named = _TIME_NAME + _pack_uint64(self._time.cluster_time)
        return self._named


def with_cluster_time(frame: bytes, clock: VectorClock) -> bytes:
    """Add this node's ``$clusterTime`` to a request to another node, unless its sender gossips one.

    Only the body is searched. If a value in it contains the field, such as a document to insert, nothing is added.
    ``frame`` is an OP_MSG of `wire.message.op_msg`, whose first section is the body.
    """
    end = BODY_AT + int.from_bytes(frame[BODY_AT : BODY_AT + 4], "little")
    if frame.find(_CLUSTER_TIME_NAME, BODY_AT, end) >= 0:
        return frame
    elements = clock.external_elements
    if not elements:
        return frame
    length, body_length = len(frame) + len(elements), end - BODY_AT + len(elements)
    return b"".join(
        (
            length.to_bytes(4, "little"),
            frame[4:BODY_AT],
            body_length.to_bytes(4, "little"),
            frame[BODY_AT + 4 : end - 1],
            elements,
            frame[end - 1 :],
        )
    )


def operation_time_element(operation_time: int) -> bytes:
    """Build ``operationTime`` from the packed time, ready for `rawbson.append`."""
    return rawbson.element(OPERATION_TIME, rawbson.TIMESTAMP, _pack_uint64(operation_time))


def config_time_element(config_time: int) -> bytes:
    """Build ``$configTime`` from the packed time, ready for `rawbson.append`."""
    return rawbson.element(CONFIG_TIME, rawbson.TIMESTAMP, _pack_uint64(config_time))


def topology_time_element(topology_time: int) -> bytes:
    """Build ``$topologyTime`` from the packed time, ready for `rawbson.append`."""
    return rawbson.element(TOPOLOGY_TIME, rawbson.TIMESTAMP, _pack_uint64(topology_time))


def signed_cluster_time(cluster_time: Timestamp) -> dict[str, Any]:
    """Build the value of ``$clusterTime`` with the dummy signature, as servers send it to each other."""
    return {"clusterTime": cluster_time, "signature": {"hash": _DUMMY_HASH, "keyId": Int64(0)}}


def _is_cluster_time_after(document: bytes, span: rawbson.Span | None, known: int) -> bool:
    """Whether a ``$clusterTime`` is later than ``known``, or in a form unusual enough to need parsing."""
    if span is None:
        return False
    if not document.startswith(_TIME_NAME, span[2] + 4):
        return True
    return bool(_unpack_uint64(document, span[2] + _TIME_AT)[0] > known)


def _is_after(document: bytes, name: bytes, span: rawbson.Span | None, known: int) -> bool:
    return span is not None and _read_timestamp(document, name, span) > known


def _read_cluster_time(document: bytes, span: rawbson.Span) -> int:
    if span[0] != rawbson.OBJECT:
        raise CommandError(ErrorCode.TypeMismatch, 'Expected field "$clusterTime" to be of type object')
    for name, inner in rawbson.spans(document, span[2]):
        if name == b"clusterTime":
            return _read_timestamp(document, b"clusterTime", inner)
    raise CommandError(ErrorCode.NoSuchKey, 'Missing expected field "clusterTime"')


def _read_timestamp(document: bytes, name: bytes, span: rawbson.Span) -> int:
    if span[0] != rawbson.TIMESTAMP:
        raise CommandError(ErrorCode.TypeMismatch, f'Expected field "{name.decode()}" to be of type timestamp')
    return int(_unpack_uint64(document, span[2])[0])
