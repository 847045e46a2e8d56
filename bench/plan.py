"""Plans for the load generator: prebuilt request frames, in the file format that ``loadgen.c`` reads."""

import re
import struct
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any, Final
from uuid import UUID, uuid4

import bson

from shardwright.wire.message import encode_sequence, op_msg

UNIQUE_ID: Final = bson.ObjectId(b"\xde\xad\xbe\xef" * 3)
"""A placeholder in documents, which the load generator replaces by a new ObjectId each time."""

SESSION_ID: Final = UUID("5e551075-e551-4075-9e55-1075e5510750")
"""A placeholder in requests, which the load generator replaces by the session id of the connection."""

TXN_NUMBER: Final = bson.Int64(0x0EDC_BA98_7654_3210)
"""A placeholder in requests, which the load generator replaces by the session's next transaction number."""

CLUSTER_TIME: Final = {
    "clusterTime": bson.Timestamp(1, 1),
    "signature": {"hash": bytes(20), "keyId": bson.Int64(0)},
}
"""The cluster time of requests until the load generator has a newer one from a reply."""

_CURSOR_ID: Final = bson.Int64(0x0123_4567_89AB_CDEF)
_BODY_AT: Final = 21


@dataclass(frozen=True)
class Frame:
    """One request, an OP_MSG."""

    data: bytes

    def filled(self) -> bytes:
        """Return the request with new ids, as the load generator would send it first on a connection."""
        data = bytearray(self.data)
        session_id = uuid4().bytes
        for kind, offset in self._slots():
            if kind is not SlotKind.CLUSTER_TIME:
                value = {
                    SlotKind.OBJECT_ID: bson.ObjectId().binary,
                    SlotKind.SESSION_ID: session_id,
                    SlotKind.TXN_NUMBER: (1).to_bytes(8, "little"),
                }[kind]
                data[offset : offset + len(value)] = value
        return bytes(data)

    def encoded(self) -> bytes:
        """Return the encoding in a plan."""
        slots = self._slots()
        numbers = [number for slot in slots for number in slot]
        return struct.pack(f"<II{len(numbers)}I", len(self.data), len(slots), *numbers) + self.data

    def _slots(self) -> list[tuple["SlotKind", int]]:
        return [
            (kind, found.start())
            for kind, placeholder in _PLACEHOLDERS.items()
            for found in re.finditer(re.escape(placeholder), self.data)
        ]


class SlotKind(IntEnum):
    """Values that the load generator writes into a request before it sends it (``enum slot_kind`` of ``loadgen.c``)."""

    OBJECT_ID = 0
    SESSION_ID = 1
    TXN_NUMBER = 2
    CLUSTER_TIME = 3


_PLACEHOLDERS: Final = {
    SlotKind.OBJECT_ID: UNIQUE_ID.binary,
    SlotKind.SESSION_ID: SESSION_ID.bytes,
    SlotKind.TXN_NUMBER: TXN_NUMBER.to_bytes(8, "little"),
    SlotKind.CLUSTER_TIME: bson.encode(CLUSTER_TIME),
}


@dataclass(frozen=True)
class Plan:
    """The frames that the load generator sends repeatedly, one after another.

    Attributes:
        get_more: the command that continues a cursor opened by a request, with `_CURSOR_ID` to be replaced; None if
            requests open no cursors.
    """

    frames: tuple[Frame, ...]
    get_more: bytes | None = None

    def write(self, path: Path) -> None:
        """Write the file."""
        get_more = self.get_more or b""
        slot = get_more.index(_CURSOR_ID.to_bytes(8, "little")) if get_more else 0
        parts = [frame.encoded() for frame in self.frames]
        path.write_bytes(
            struct.pack("<I", len(parts)) + b"".join(parts) + struct.pack("<I", slot) + Frame(get_more).encoded()
        )


def request(command: dict[str, Any], documents: dict[str, list[dict[str, Any]]] | None = None) -> Frame:
    """Build a request with the given body, and at most one document sequence."""
    sections = b"".join(
        encode_sequence(name.encode(), map(bson.encode, each)) for name, each in (documents or {}).items()
    )
    return Frame(op_msg(bson.encode(command), request_id=1, sections=sections))


def get_more(command: str, collection: str, common: dict[str, Any]) -> bytes:
    """Build the request that continues a cursor."""
    body = bson.encode({command: _CURSOR_ID, "collection": collection, **common})
    return op_msg(body, request_id=1)


def body_of(frame: bytes) -> dict[str, Any]:
    """Decode the body of a frame that has only a body."""
    return bson.decode(frame[_BODY_AT:])
