"""OP_MSG: its flags, checksum and sections, and how to build one.

A frame is one whole message with its 16-byte header. Nothing is decoded: the body stays a slice of the frame, and a
document sequence is split by length prefixes only.

Format: https://www.mongodb.com/docs/manual/reference/mongodb-wire-protocol/ (OP_MSG, opcode 2013). A checksum is
present if flag bit 0, ``checksumPresent``, is set.
"""

from collections.abc import Iterable, Sequence
from struct import Struct
from struct import error as struct_error
from typing import Any, Final

import bson
import google_crc32c

from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError, MalformedRequestError, RemoteProtocolError
from shardwright.wire.frames import OP_MSG, next_request_id
from shardwright.wire.rawbson import DOCUMENT_BYTES_MIN, InvalidBSONError, find


def checksum(data: bytes) -> int:
    """Compute the CRC-32C of ``data`` as an unsigned 32-bit number."""
    return int(google_crc32c.value(data))


SECTIONS_AT: Final = 20
"""Offset of the first section, after the header and the flags."""

_BODY: Final = 0
_SEQUENCE: Final = 1
_SECURITY_TOKEN: Final = 2

MULTIPLE_BODIES: Final = 40430
DUPLICATE_SEQUENCE: Final = 40431
UNKNOWN_SECTION: Final = 40432
SEQUENCE_IN_BODY_TOO: Final = 40433
NO_BODY: Final = 40587

_LENGTH: Final = Struct("<i")
_unpack_length = _LENGTH.unpack_from


class DocumentSequence:
    """A kind 1 section: a named sequence of documents outside the body, for example the statements of a bulk write."""

    __slots__ = ("_documents", "data", "name")

    def __init__(self, name: bytes, data: bytes) -> None:
        self.name = name
        self.data = data
        self._documents: list[bytes] | None = None

    @property
    def documents(self) -> list[bytes]:
        """Documents, each as its own bytes; raises MalformedRequestError if they do not fill the section exactly."""
        if self._documents is None:
            self._documents = split_documents(self.data)
        return self._documents

    def section(self) -> bytes:
        """Encode the section for a message, with its kind byte."""
        return encode_sequence(self.name, (self.data,))


def parse_sections(frame: bytes, end: int) -> tuple[bytes, list[DocumentSequence]]:
    """Split a message, whose sections end at ``end``, into its body and document sequences.

    Raises MalformedRequestError if the sections do not add up.
    """
    body: bytes | None = None
    sequences: list[DocumentSequence] = []
    position = SECTIONS_AT
    while position < end:
        kind = frame[position]
        position += 1
        if kind == _BODY:
            if body is not None:
                raise MalformedRequestError(MULTIPLE_BODIES, "Multiple body sections in message")
            body = _document(frame, position, end)
            position += len(body)
        elif kind == _SEQUENCE:
            content = _sequence_content(frame, position, end)
            sequences.append(_parse_sequence(content, sequences))
            position += _LENGTH.size + len(content)
        elif kind == _SECURITY_TOKEN:
            raise MalformedRequestError(ErrorCode.Unauthorized, "Unsupported Security Token provided")
        else:
            raise MalformedRequestError(UNKNOWN_SECTION, f"Unknown section kind {kind}")
    if body is None:
        raise MalformedRequestError(NO_BODY, "OP_MSG messages must have a body")
    _check_sequences_are_not_in(body, sequences)
    return body, sequences


def _document(data: bytes, start: int, end: int) -> bytes:
    """Cut out the document at ``start``, checking only its length; raise MalformedRequestError if it passes ``end``."""
    length = _unpack_length(data, start)[0] if start + DOCUMENT_BYTES_MIN <= end else 0
    if length < DOCUMENT_BYTES_MIN:
        raise _invalid_bson("BSON data has to be at least 5 bytes")
    if start + length > end:
        raise _invalid_bson("Incorrect BSON length")
    return data[start : start + length]


def _sequence_content(frame: bytes, start: int, end: int) -> bytes:
    """Return a document sequence without its length; raise MalformedRequestError if the length is impossible."""
    left = end - start - _LENGTH.size
    if left < 0:
        raise _overflow(f"buffer size too small to read (4) bytes out of buffer[{end - start}]")
    length = _unpack_length(frame, start)[0] - _LENGTH.size
    if not 0 <= length <= left:
        raise _overflow(f"Invalid advance ({length & 0xFFFFFFFF}) past end of buffer[{left}]")
    start += _LENGTH.size
    return frame[start : start + length]


def _parse_sequence(content: bytes, earlier: list[DocumentSequence]) -> DocumentSequence:
    name, terminator, data = content.partition(b"\0")
    if not terminator:
        raise _overflow(f"couldn't locate terminal char (\\u0000) in buffer[{len(content)}]")
    if any(sequence.name == name for sequence in earlier):
        text = name.decode(errors="replace")
        raise MalformedRequestError(DUPLICATE_SEQUENCE, f"Duplicate document sequence: {text}")
    return DocumentSequence(name, data)


def _check_sequences_are_not_in(body: bytes, sequences: list[DocumentSequence]) -> None:
    for sequence in sequences:
        # Comparing bytes first spares nearly all messages a walk through the fields.
        if sequence.name + b"\0" in body and _has_field(body, sequence.name):
            name = sequence.name.decode(errors="replace")
            message = f"Duplicate field between body and document sequence {name}"
            raise MalformedRequestError(SEQUENCE_IN_BODY_TOO, message)


def _has_field(body: bytes, name: bytes) -> bool:
    try:
        return find(body, name) is not None
    except InvalidBSONError:
        return False  # parsing the request will report it


def split_documents(data: bytes) -> list[bytes]:
    """Split documents by their length prefixes; raise MalformedRequestError if they do not fill ``data`` exactly."""
    documents: list[bytes] = []
    position, end = 0, len(data)
    last = end - DOCUMENT_BYTES_MIN
    while position <= last:
        next_position = position + _unpack_length(data, position)[0]
        if next_position < position + DOCUMENT_BYTES_MIN or next_position > end:
            break
        documents.append(data[position:next_position])
        position = next_position
    if position < end:
        _document(data, position, end)  # raises the error of its length
    return documents


def is_one_document(data: bytes) -> bool:
    """Whether the bytes of a document sequence are a single document, by its length prefix."""
    return len(data) > _LENGTH.size and bool(_unpack_length(data, 0)[0] == len(data))


def encode_sequence(name: bytes, documents: Iterable[bytes]) -> bytes:
    """Encode a kind 1 section."""
    content = b"".join(documents)
    return b"\x01" + _LENGTH.pack(4 + len(name) + 1 + len(content)) + name + b"\0" + content


def _invalid_bson(what: str) -> MalformedRequestError:
    text = f"{what} in element with field name '?' in object with unknown _id"
    return MalformedRequestError(ErrorCode.InvalidBSON, text)


def _overflow(what: str) -> MalformedRequestError:
    return MalformedRequestError(ErrorCode.Overflow, f"{what} at offset: 0")


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
"""Offset of the body in a message that begins with it, as `op_msg` and nearly all clients write it."""


class OpMsg:
    """One OP_MSG: its ids, flags, body and document sequences.

    ``frame`` is the message as received, so that it can be forwarded unchanged.
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
        # Fast path: nearly every message is just a body that fills the frame.
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
        """Build the frame of this message with another body. Drops the checksum, which would no longer match."""
        sections = b"".join([sequence.section() for sequence in self.sequences]) if self.sequences else b""
        return op_msg(body, request_id=self.request_id, flags=self.flags & ~CHECKSUM_PRESENT, sections=sections)

    def with_body(self, body: bytes) -> "OpMsg":
        """Return this message with another body, and without the checksum."""
        message = object.__new__(OpMsg)
        message.frame, message.body, message.sequences = self.frame_with(body), body, self.sequences
        message.flags = self.flags & ~CHECKSUM_PRESENT
        message.request_id, message.response_to = self.request_id, 0
        return message


def flags_of(frame: bytes) -> int:
    """Return the flags of an OP_MSG, which may have no sections."""
    flags: int = _UINT32.unpack_from(frame, _FLAGS_AT)[0]
    return flags


def _too_short(frame: bytes) -> RemoteProtocolError:
    """Build the error for a frame without a section."""
    if len(frame) < SECTIONS_AT:
        return RemoteProtocolError("an OP_MSG too short for its flags")
    if flags_of(frame) & CHECKSUM_PRESENT:
        return MalformedRequestError(NO_CHECKSUM, "Invalid message size for an OpMsg containing a checksum")
    return MalformedRequestError(NO_BODY, "OP_MSG messages must have a body")


def op_msg(body: bytes, *, request_id: int, response_to: int = 0, flags: int = 0, sections: bytes = b"") -> bytes:
    """Build the frame of an OP_MSG without a checksum.

    ``flags`` may be `MORE_TO_COME` and `EXHAUST_ALLOWED`; `encode_sequence` builds ``sections``.
    """
    length = 21 + len(body) + len(sections)
    return _pack_prefix(length, request_id, response_to, OP_MSG, flags, 0) + body + sections


def with_body(frame: bytes, body: bytes) -> bytes:
    """Build an OP_MSG with the ids of ``frame`` and another body, without flags, checksum and document sequences."""
    _, request_id, response_to, _, _, _ = _unpack_prefix(frame)
    return _pack_prefix(21 + len(body), request_id, response_to, OP_MSG, 0, 0) + body


def with_checksum(frame: bytes) -> bytes:
    """Append the CRC-32C to an OP_MSG frame and set ``checksumPresent``."""
    length, request_id, response_to, opcode, flags, kind = _unpack_prefix(frame)
    prefix = _pack_prefix(length + 4, request_id, response_to, opcode, flags | CHECKSUM_PRESENT, kind)
    summed = prefix + frame[21:]
    return summed + _UINT32.pack(checksum(summed))


def reply(request_id: int, body: bytes) -> bytes:
    """Build the frame that answers a request with one document."""
    return op_msg(body, request_id=next_request_id(), response_to=request_id)


def reply_of_elements(request_id: int, elements: Iterable[bytes | memoryview]) -> bytes:
    """Build a `reply` from the raw elements of its body, copying them only once."""
    pieces = list(elements)
    length = sum(map(len, pieces)) + 5
    prefix = _pack_prefix(21 + length, next_request_id(), request_id, OP_MSG, 0, 0)
    return b"".join([prefix, _INT32.pack(length), *pieces, b"\0"])


def reply_document(request_id: int, document: dict[str, Any]) -> bytes:
    """Build a `reply` from a dict."""
    return reply(request_id, bson.encode(document))


def error_reply(request_id: int, error: CommandError) -> bytes:
    """Build the frame of an ``ok: 0`` reply."""
    return reply_document(request_id, error.reply())
