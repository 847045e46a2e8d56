"""The router's own replies, which end with the newest times seen, and errors without a code."""

from collections.abc import Iterable
from typing import Any, Final, TypeAlias

from shardwright.sharding.clock import VectorClock, operation_time_element, signed_cluster_time
from shardwright.sharding.timestamps import unpack_timestamp
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.message import reply_document, reply_of_elements
from shardwright.wire.rawbson import encode_elements


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
