"""Frames: splitting a stream of bytes into messages, and reading their 16-byte headers.

Format: https://www.mongodb.com/docs/manual/reference/mongodb-wire-protocol/ (Standard Message Header).
"""

from itertools import count
from struct import Struct
from typing import Final

from shardwright.wire.errors import RemoteProtocolError
from shardwright.wire.limits import MESSAGE_BYTES_MAX

HEADER_BYTES: Final = 16

OP_REPLY: Final = 1
OP_QUERY: Final = 2004
OP_GET_MORE: Final = 2005
OP_COMPRESSED: Final = 2012
OP_MSG: Final = 2013

_OPCODES: Final = frozenset({OP_REPLY, OP_QUERY, OP_GET_MORE, OP_COMPRESSED, OP_MSG})
_TLS_HANDSHAKE: Final = b"\x16\x03"

_HEADER = Struct("<iiii")
_unpack_header = _HEADER.unpack_from
_unpack_int32 = Struct("<i").unpack_from

_request_ids = count(1)


def next_request_id() -> int:
    """Return a request id for one of our own messages; ids wrap around as int32."""
    return next(_request_ids) & 0x7FFFFFFF


class Header:
    """The header of a frame."""

    __slots__ = ("length", "opcode", "request_id", "response_to")

    def __init__(self, frame: bytes) -> None:
        self.length, self.request_id, self.response_to, self.opcode = _unpack_header(frame)


def frame_length(data: bytes | bytearray) -> int:
    """Return the length of the frame that begins with ``data``, at least four bytes.

    Raises RemoteProtocolError if it is impossible.
    """
    length = int(_unpack_int32(data)[0])
    if not HEADER_BYTES <= length <= MESSAGE_BYTES_MAX:
        raise RemoteProtocolError(f"message length {length} is not between {HEADER_BYTES} and {MESSAGE_BYTES_MAX}")
    return length


def is_whole_frame(data: bytes) -> bool:
    """Whether ``data`` is exactly one frame, judged by its length prefix."""
    return len(data) >= HEADER_BYTES and _unpack_int32(data)[0] == len(data)


def _check_opcode(data: bytes) -> None:
    opcode = Header(data).opcode
    if opcode not in _OPCODES:
        is_tls = data.startswith(_TLS_HANDSHAKE)
        what = "a TLS handshake, but TLS is disabled" if is_tls else f"message with unsupported opcode {opcode}"
        raise RemoteProtocolError(what)


class FrameReader:
    """Splitter of a stream of bytes into frames of at most ``bytes_max``.

    Feed it received bytes, then take frames until it returns None. `bytes_missing` lets a transport read a long message
    in few calls. ``available`` counts the bytes fed and not taken. At 0 the peer can close the connection without
    truncating a message.
    """

    __slots__ = ("_frame_bytes", "_is_header_known", "_pieces", "available", "bytes_max")

    def __init__(self) -> None:
        self.bytes_max = MESSAGE_BYTES_MAX
        # Joined only when a frame is complete, so that a long one is copied once.
        self._pieces: list[bytes] = []
        self.available = 0
        self._frame_bytes = 0
        self._is_header_known = False

    def feed(self, data: bytes) -> None:
        """Add received bytes."""
        self._pieces.append(data)
        self.available += len(data)

    def discard(self) -> None:
        """Drop the received bytes; the reader is not used afterwards."""
        self._pieces = []
        self.available = self._frame_bytes = 0

    def next_frame(self) -> bytes | None:
        """Take the next whole frame; None while it is incomplete.

        An oversized message is rejected from its header, before its body arrives.

        Raises:
            RemoteProtocolError: the length prefix is impossible or exceeds `bytes_max`, or the opcode is unknown.
        """
        available = self.available
        if not self._frame_bytes:
            if available < 4:
                return None
            self._frame_bytes = frame_length(self._joined())
            if self._frame_bytes > self.bytes_max:
                raise RemoteProtocolError(f"message length {self._frame_bytes} is more than {self.bytes_max}")
        length = self._frame_bytes
        if available < length:
            if not self._is_header_known and available >= HEADER_BYTES:
                self._is_header_known = True
                _check_opcode(self._joined())
            return None
        joined = self._joined()
        self._frame_bytes = 0
        self._is_header_known = False
        self.available -= length
        if available == length:
            self._pieces = []
            return joined
        self._pieces = [joined[length:]]
        return joined[:length]

    def _joined(self) -> bytes:
        if len(self._pieces) > 1:
            self._pieces = [b"".join(self._pieces)]
        return self._pieces[0]

    @property
    def bytes_missing(self) -> int:
        """Number of missing bytes of the current frame; 0 between frames and while its length is unknown."""
        return self._frame_bytes - self.available if self._frame_bytes else 0
