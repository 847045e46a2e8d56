"""The router's own replies, errors without a code, and the common end of all replies.

Replies end with ``ok: 1``, ``$clusterTime`` and ``operationTime``. In transactions the recovery token precedes them.
The three have a fixed length, so a few comparisons recognize such a *usual* reply and locate its cluster time without
walking over its fields. The usual end implies that the command succeeded and that the body is the only section.
It also implies that no field is hidden from clients, because a genuine shard puts such fields between ``ok`` and
``$clusterTime``.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from struct import Struct
from typing import Any, Final, TypeAlias

from bson.int64 import Int64
from bson.timestamp import Timestamp

from shardwright.sharding.clock import VectorClock, operation_time_element, signed_cluster_time
from shardwright.sharding.cluster_time import DUMMY_SIGNATURE_ELEMENT, TimeSigner, unpack_timestamp
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.frames import OP_MSG
from shardwright.wire.message import BODY_AT, OpMsg, reply_document, reply_of_elements, with_body
from shardwright.wire.rawbson import (
    INT32,
    OBJECT,
    OBJECT_ID,
    TIMESTAMP,
    decode_document,
    decode_value,
    element,
    encode_document,
    encode_elements,
    from_elements,
    index,
)

_unpack_uint64: Final = Struct("<Q").unpack_from
_unpack_int32: Final = Struct("<i").unpack_from

# From the opcode on: OP_MSG, no flags, and a body section first.
_PLAIN: Final = OP_MSG.to_bytes(4, "little") + bytes(5)
_PLAIN_AT: Final = 12

_SHORT_BYTES_MAX: Final = 65_536

_TIME: Final = bytes(8)
_SIGNATURE_BYTES: Final = len(DUMMY_SIGNATURE_ELEMENT)
_CLUSTER_TIME_BYTES: Final = 4 + len(element(b"clusterTime", TIMESTAMP, _TIME)) + _SIGNATURE_BYTES + 1

_NAMES_OF_TIME: Final = element(b"$clusterTime", OBJECT, _CLUSTER_TIME_BYTES.to_bytes(4, "little")) + element(
    b"clusterTime", TIMESTAMP, b""
)
_BEFORE_TIME: Final = encode_elements({"ok": 1.0}) + _NAMES_OF_TIME
_OPERATION_TIME: Final = element(b"operationTime", TIMESTAMP, b"")

# Offsets from the end of the frame.
_OPERATION_TIME_FROM_END: Final = len(_OPERATION_TIME) + len(_TIME) + 1
_SIGNATURE_FROM_END: Final = _OPERATION_TIME_FROM_END + 1 + _SIGNATURE_BYTES
_TIME_FROM_END: Final = _SIGNATURE_FROM_END + len(_TIME)
_TIMES_FROM_END: Final = _TIME_FROM_END + len(_NAMES_OF_TIME)
_TAIL_BYTES: Final = _TIME_FROM_END + len(_BEFORE_TIME)

# Offsets from the start of a write's reply.
_FIRST_AT: Final = BODY_AT + 4
_COUNT: Final = element(b"n", INT32, b"")
_ELECTION_ID_AT: Final = _FIRST_AT + len(_COUNT) + 4
_ELECTION_ID: Final = element(b"electionId", OBJECT_ID, b"")
_OP_TIME_AT: Final = _ELECTION_ID_AT + len(_ELECTION_ID) + 12
_OP_TIME_BYTES: Final = len(encode_document({"ts": Timestamp(0, 0), "t": Int64(0)}))
_OP_TIME: Final = element(b"opTime", OBJECT, _OP_TIME_BYTES.to_bytes(4, "little"))
_REST_AT: Final = _OP_TIME_AT + len(_OP_TIME) - 4 + _OP_TIME_BYTES


class PlainError(CommandError):
    """An error whose reply is ``{ok: 0, errmsg}`` alone, MongoDB's form for wrong arguments of some commands."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.UnknownError, message)

    def reply(self) -> dict[str, Any]:
        """Return the body of the reply."""
        return {"ok": 0.0, "errmsg": self.message}


Reply: TypeAlias = bytes | dict[str, Any] | None
"""A whole reply frame, a document to be framed (``ok: 1`` is added), or None if nothing more is to be sent."""

_OK: Final = encode_elements({"ok": 1.0})


def gossip(clock: VectorClock, operation_time: int = 0) -> dict[str, Any]:
    """Return the last fields of the router's replies; empty while no time is known."""
    cluster_time = clock.time.cluster_time
    if not cluster_time:
        return {}
    newest = unpack_timestamp(cluster_time)
    return {
        "$clusterTime": signed_cluster_time(newest),
        "operationTime": unpack_timestamp(operation_time) if operation_time else newest,
    }


def framed_error(request_id: int, error: CommandError, clock: VectorClock) -> bytes:
    """Build the frame of an ``ok: 0`` reply."""
    return reply_document(request_id, {**error.reply(), **gossip(clock)})


def raw_reply(request_id: int, elements: Iterable[bytes], clock: VectorClock, operation_time: int = 0) -> bytes:
    """Build the frame of a successful reply whose content is already raw BSON.

    Args:
        elements: raw elements, or pieces of them, before ``ok`` and the times; they are copied only once.
        operation_time: the packed time of the operation, if it is known to be earlier than the newest time seen.
    """
    time = clock.time
    operation_time = operation_time or time.cluster_time
    times = time.external_elements() + operation_time_element(operation_time) if time.cluster_time else b""
    return reply_of_elements(request_id, (*elements, _OK, times))


def cluster_time_of_usual(frame: bytes) -> int:
    """Return the packed ``$clusterTime`` of a usual reply; 0 for any other."""
    length = len(frame)
    if (
        frame.startswith(_BEFORE_TIME, length - _TAIL_BYTES)
        and frame.startswith(_OPERATION_TIME, length - _OPERATION_TIME_FROM_END)
        and frame.startswith(_PLAIN, _PLAIN_AT)
    ):
        return int(_unpack_uint64(frame, length - _TIME_FROM_END)[0])
    return 0


def operation_time_of_usual(frame: bytes) -> int:
    """Return the packed ``operationTime`` of a usual reply."""
    return int(_unpack_uint64(frame, len(frame) - _OPERATION_TIME_FROM_END + len(_OPERATION_TIME))[0])


def with_elements_before_times(frame: bytes, elements: bytes) -> bytes:
    """Insert elements before the times of a usual reply."""
    at = len(frame) - _TIMES_FROM_END
    return _resized(frame, len(elements), frame[BODY_AT + 4 : at], elements, frame[at:])


def without_write_metadata(frame: bytes) -> bytes:
    """Remove ``electionId`` and ``opTime``, which clients do not receive, from a usual reply to a write.

    A mongod puts them directly after ``n``. A reply without them there is returned unchanged.
    """
    if not (
        frame.startswith(_COUNT, _FIRST_AT)
        and frame.startswith(_ELECTION_ID, _ELECTION_ID_AT)
        and frame.startswith(_OP_TIME, _OP_TIME_AT)
    ):
        return frame
    return _resized(frame, _ELECTION_ID_AT - _REST_AT, frame[_FIRST_AT:_ELECTION_ID_AT], frame[_REST_AT:])


def signed(frame: bytes, signer: TimeSigner, *, keeps_length: bool = False) -> bytes:
    """Sign the ``$clusterTime`` of a reply to a client; return the same object if it has none.

    Failed replies end with the same two fields, so they are signed too.

    Args:
        signer: without a key, it keeps the dummy signature, or withholds the times, which are then removed.
        keeps_length: whether the times must not be removed.
    """
    length = len(frame)
    if not (
        frame.startswith(_NAMES_OF_TIME, length - _TIMES_FROM_END)
        and frame.startswith(_OPERATION_TIME, length - _OPERATION_TIME_FROM_END)
    ):
        return frame
    signature = signer.element(_unpack_uint64(frame, length - _TIME_FROM_END)[0])
    if signature is DUMMY_SIGNATURE_ELEMENT:
        return _without_times(frame) if signer.withholds_unsigned and not keeps_length else frame
    at = length - _SIGNATURE_FROM_END
    # The memoryview avoids a second copy of a long reply.
    parts = memoryview(frame) if length > _SHORT_BYTES_MAX else frame
    return b"".join((parts[:at], signature, parts[at + _SIGNATURE_BYTES :]))


def _without_times(frame: bytes) -> bytes:
    """Remove the times at the end of a reply."""
    if _unpack_int32(frame, BODY_AT)[0] != len(frame) - BODY_AT:
        return frame
    return _resized(frame, 1 - _TIMES_FROM_END, frame[BODY_AT + 4 : -_TIMES_FROM_END], b"\0")


def _resized(frame: bytes, added: int, *parts: bytes) -> bytes:
    """Rebuild a reply whose body grew or, if negative, shrank; ``parts`` is the body after its length."""
    length, body_length = _unpack_int32(frame)[0] + added, _unpack_int32(frame, BODY_AT)[0] + added
    return b"".join((length.to_bytes(4, "little"), frame[4:BODY_AT], body_length.to_bytes(4, "little"), *parts))


_WRITE_ERRORS: Final = b"writeErrors"
"""Searched for in short replies only. Long replies have few fields for their length, so a walk over them is quicker."""

_CLUSTER_TIME: Final = b"$clusterTime"
_KNOWN_SHARDS_MAX: Final = 1_024


def token_of(recovery_shard: str | None) -> dict[str, str]:
    """Return the token from which another router can recover a transaction's outcome; empty before the first write.

    Args:
        recovery_shard: the shard that has the outcome.
    """
    return {} if recovery_shard is None else {"recoveryShardId": recovery_shard}


@lru_cache(_KNOWN_SHARDS_MAX)
def token_element(recovery_shard: str | None) -> bytes:
    """Encode the element ``recoveryToken``, see `token_of`."""
    return encode_elements({"recoveryToken": token_of(recovery_shard)})


def with_recovery_token(reply: Reply, recovery_shard: str | None) -> tuple[Reply, int]:
    """Add a recovery token to a successful reply; return it with the code of its first item error, 0 if none.

    Args:
        recovery_shard: of the transaction; None while there is none.

    Raises:
        CommandError: the reply is a shard's error, in the form for the client.
    """
    if reply is None:
        return None, 0
    if isinstance(reply, dict):
        return {**reply, "recoveryToken": token_of(recovery_shard)}, _first_code(reply.get("writeErrors"))
    if len(reply) <= _SHORT_BYTES_MAX and cluster_time_of_usual(reply) and _WRITE_ERRORS not in reply:
        return with_elements_before_times(reply, token_element(recovery_shard)), 0
    body = OpMsg(reply).body
    fields = index(body)
    ok = fields.get(b"ok")
    if ok is None or not decode_value(body, ok):
        raise CommandError.from_reply(decode_document(body))
    # Before the times, because they are expected at the end.
    at = fields[_CLUSTER_TIME][1] if _CLUSTER_TIME in fields else len(body) - 1
    elements = b"".join((body[4:at], token_element(recovery_shard), body[at:-1]))
    failures = fields.get(b"writeErrors")
    return with_body(reply, from_elements(elements)), 0 if failures is None else _first_code(
        decode_value(body, failures)
    )


def _first_code(failures: Sequence[Mapping[str, Any]] | None) -> int:
    return int(failures[0]["code"]) if failures else 0
