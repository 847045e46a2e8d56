"""OP_MSG: its flags, checksum and parts, and how to build one.

A frame is the bytes of one whole message with its 16-byte header. Nothing is decoded: the body stays a slice of the
frame and a document sequence is cut into its documents by their length prefixes only (`wire.sections`).

The format is that of https://www.mongodb.com/docs/manual/reference/mongodb-wire-protocol/ (OP_MSG, opcode 2013).
"""

from collections.abc import Iterable, Sequence
from struct import Struct
from struct import error as struct_error
from typing import Any, Final

import bson

from shardwright.wire.checksum import checksum
from shardwright.wire.errors import CommandError, MalformedRequestError, RemoteProtocolError
from shardwright.wire.frames import OP_MSG, next_request_id
from shardwright.wire.sections import NO_BODY, SECTIONS_AT, DocumentSequence, parse_sections

CHECKSUM_PRESENT: Final = 1 << 0
MORE_TO_COME: Final = 1 << 1
EXHAUST_ALLOWED: Final = 1 << 16
_REQUIRED_FLAGS: Final = 0xFFFF
_KNOWN_REQUIRED_FLAGS: Final = CHECKSUM_PRESENT | MORE_TO_COME

NO_CHECKSUM: Final = 51252

_FLAGS_AT: Final = 16

_OP_MSG_PREFIX = Struct("<iiiiIB")  # the header, the flags, and the kind byte of the first section
_INT32 = Struct("<i")
_UINT32 = Struct("<I")
_unpack_prefix = _OP_MSG_PREFIX.unpack_from
_pack_prefix = _OP_MSG_PREFIX.pack
_unpack_int32 = _INT32.unpack_from

BODY_AT: Final = _OP_MSG_PREFIX.size
"""Offset of the body in a message whose first section it is, as those of `op_msg` and nearly all others."""


class OpMsg:
    """One OP_MSG: its ids, flags, body and document sequences.

    ``frame`` is the message as it came, so that it can be passed on untouched.
    """

    __slots__ = ("body", "flags", "frame", "request_id", "response_to", "sequences")

    def __init__(self, frame: bytes) -> None:
        """Parse a whole frame whose opcode is OP_MSG.

        Raises:
            MalformedRequestError: sections that do not add up, or no room for a checksum.
            RemoteProtocolError: unknown required flags, or a wrong checksum.
        """
        try:
            length, self.request_id, self.response_to, _, flags, kind = _unpack_prefix(frame)
        except struct_error:
            raise _too_short(frame) from None
        self.frame = frame
        self.flags = flags
        # Nearly every message is just a body that fills the frame.
        if not flags & _REQUIRED_FLAGS and kind == 0 and length >= 26 and _unpack_int32(frame, 21)[0] == length - 21:
            self.body = frame[21:]
            self.sequences: Sequence[DocumentSequence] = ()
            return
        if flags & _REQUIRED_FLAGS & ~_KNOWN_REQUIRED_FLAGS:
            raise RemoteProtocolError(f"OP_MSG with unknown required flags 0x{flags & _REQUIRED_FLAGS:04x}")
        end = length
        if flags & CHECKSUM_PRESENT:
            end -= 4
            if end < SECTIONS_AT:
                raise _too_short(frame)
            if _UINT32.unpack_from(frame, end)[0] != checksum(frame[:end]):
                raise RemoteProtocolError("OP_MSG checksum does not match contents")
        self.body, self.sequences = parse_sections(frame, end)

    @property
    def is_exhaust_allowed(self) -> bool:
        """Whether the sender accepts more than one reply."""
        return bool(self.flags & EXHAUST_ALLOWED)

    def frame_with(self, body: bytes) -> bytes:
        """The frame of this message with another body, and without the checksum, which would no longer match."""
        sections = b"".join([sequence.section() for sequence in self.sequences]) if self.sequences else b""
        return op_msg(body, request_id=self.request_id, flags=self.flags & ~CHECKSUM_PRESENT, sections=sections)

    def with_body(self, body: bytes) -> "OpMsg":
        """This message with another body, and without the checksum."""
        message = object.__new__(OpMsg)
        message.frame, message.body, message.sequences = self.frame_with(body), body, self.sequences
        message.flags = self.flags & ~CHECKSUM_PRESENT
        message.request_id, message.response_to = self.request_id, 0
        return message


def flags_of(frame: bytes) -> int:
    """The flags of an OP_MSG that may have no sections."""
    flags: int = _UINT32.unpack_from(frame, _FLAGS_AT)[0]
    return flags


def _too_short(frame: bytes) -> RemoteProtocolError:
    """The error for a frame that has no section."""
    if len(frame) < SECTIONS_AT:
        return RemoteProtocolError("an OP_MSG too short for its flags")
    if flags_of(frame) & CHECKSUM_PRESENT:
        return MalformedRequestError(NO_CHECKSUM, "Invalid message size for an OpMsg containing a checksum")
    return MalformedRequestError(NO_BODY, "OP_MSG messages must have a body")


def op_msg(body: bytes, *, request_id: int, response_to: int = 0, flags: int = 0, sections: bytes = b"") -> bytes:
    """The frame of an OP_MSG without a checksum.

    Args:
        body: the body document.
        request_id: id of this message.
        response_to: id of the message that this one answers.
        flags: `MORE_TO_COME` and `EXHAUST_ALLOWED`.
        sections: further sections, as returned by `encode_sequence`.
    """
    length = 21 + len(body) + len(sections)
    return _pack_prefix(length, request_id, response_to, OP_MSG, flags, 0) + body + sections


def with_body(frame: bytes, body: bytes) -> bytes:
    """An OP_MSG with the ids of another one and a body of its own, without flags, checksum and document sequences."""
    _, request_id, response_to, _, _, _ = _unpack_prefix(frame)
    return _pack_prefix(21 + len(body), request_id, response_to, OP_MSG, 0, 0) + body


def with_checksum(frame: bytes) -> bytes:
    """The same OP_MSG frame with its CRC-32C appended and ``checksumPresent`` set."""
    length, request_id, response_to, opcode, flags, kind = _unpack_prefix(frame)
    prefix = _pack_prefix(length + 4, request_id, response_to, opcode, flags | CHECKSUM_PRESENT, kind)
    summed = prefix + frame[21:]
    return summed + _UINT32.pack(checksum(summed))


def reply(request_id: int, body: bytes) -> bytes:
    """The frame that answers the request of the given id with one document."""
    return op_msg(body, request_id=next_request_id(), response_to=request_id)


def reply_of_elements(request_id: int, elements: Iterable[bytes | memoryview]) -> bytes:
    """As `reply`, for a body given as its raw elements, which are copied only once."""
    pieces = list(elements)
    length = sum(map(len, pieces)) + 5
    prefix = _pack_prefix(21 + length, next_request_id(), request_id, OP_MSG, 0, 0)
    return b"".join([prefix, _INT32.pack(length), *pieces, b"\0"])


def reply_document(request_id: int, document: dict[str, Any]) -> bytes:
    """As `reply`, encoding a dict."""
    return reply(request_id, bson.encode(document))


def error_reply(request_id: int, error: CommandError) -> bytes:
    """The frame of an ``ok: 0`` reply with ``error``."""
    return reply_document(request_id, error.reply())
