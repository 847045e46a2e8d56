"""Plans for the load generator: prebuilt request frames, in the file format that ``loadgen.c`` reads."""

import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import bson

from shardwright.wire.message import op_msg
from shardwright.wire.sections import encode_sequence

UNIQUE_ID: Final = bson.ObjectId(b"\xde\xad\xbe\xef" * 3)
"""A placeholder in documents, which the load generator replaces by a new ObjectId each time."""

_CURSOR_ID: Final = bson.Int64(0x0123_4567_89AB_CDEF)
_BODY_AT: Final = 21


@dataclass(frozen=True)
class Frame:
    """One request.

    Attributes:
        data: the OP_MSG.
        unique_ids: offsets of the ObjectIds to replace.
    """

    data: bytes
    unique_ids: tuple[int, ...] = ()

    def filled(self) -> bytes:
        """The request with new ids, as the load generator would send it."""
        data = bytearray(self.data)
        for offset in self.unique_ids:
            data[offset : offset + len(UNIQUE_ID.binary)] = bson.ObjectId().binary
        return bytes(data)

    def encoded(self) -> bytes:
        """The encoding in a plan."""
        count = len(self.unique_ids)
        return struct.pack(f"<II{count}I", len(self.data), count, *self.unique_ids) + self.data


@dataclass(frozen=True)
class Plan:
    """The frames that the load generator sends repeatedly, one after another.

    Attributes:
        frames: the requests.
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
    """A request with the given body, and at most one document sequence."""
    sections = b"".join(
        encode_sequence(name.encode(), map(bson.encode, each)) for name, each in (documents or {}).items()
    )
    data = op_msg(bson.encode(command), request_id=1, sections=sections)
    return Frame(data, tuple(found.start() for found in re.finditer(re.escape(UNIQUE_ID.binary), data)))


def get_more(command: str, collection: str, common: dict[str, Any]) -> bytes:
    """The request that continues a cursor."""
    body = bson.encode({command: _CURSOR_ID, "collection": collection, **common})
    return op_msg(body, request_id=1)


def body_of(frame: bytes) -> dict[str, Any]:
    """The decoded body of a frame that has only a body."""
    return bson.decode(frame[_BODY_AT:])
