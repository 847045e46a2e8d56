"""OP_MSG: what sections a message has, and how to build one.

A frame is the bytes of one whole message with its 16-byte header. Nothing is decoded: the body stays a slice of the
frame and a document sequence is cut into its documents by their length prefixes only.

The format is that of https://www.mongodb.com/docs/manual/reference/mongodb-wire-protocol/ (OP_MSG, opcode 2013).
"""

from collections.abc import Iterable, Sequence
from struct import Struct
from struct import error as struct_error
from typing import Any, Final

import bson

from shardwright.wire.checksum import checksum
from shardwright.wire.errors import CommandError, RemoteProtocolError
from shardwright.wire.frames import OP_MSG, next_request_id
from shardwright.wire.rawbson import InvalidBSONError, document_length

CHECKSUM_PRESENT: Final = 1 << 0
MORE_TO_COME: Final = 1 << 1
EXHAUST_ALLOWED: Final = 1 << 16
_REQUIRED_FLAGS: Final = 0xFFFF
_KNOWN_REQUIRED_FLAGS: Final = CHECKSUM_PRESENT | MORE_TO_COME

_OP_MSG_PREFIX = Struct("<iiiiIB")  # the header, the flags, and the kind byte of the first section
_INT32 = Struct("<i")
_UINT32 = Struct("<I")
_unpack_prefix = _OP_MSG_PREFIX.unpack_from
_pack_prefix = _OP_MSG_PREFIX.pack
_unpack_int32 = _INT32.unpack_from

BODY_AT: Final = _OP_MSG_PREFIX.size
"""Offset of the body in a message whose first section it is, as those of `op_msg` and nearly all others."""


class DocumentSequence:
    """A kind 1 section: a named sequence of documents outside the body, for example the statements of a bulk write."""

    __slots__ = ("_documents", "data", "name")

    def __init__(self, name: bytes, data: bytes) -> None:
        self.name = name
        self.data = data
        self._documents: list[bytes] | None = None

    @property
    def documents(self) -> list[bytes]:
        """The documents, each as its own bytes.

        Raises:
            RemoteProtocolError: the documents do not fill the section exactly.
        """
        if self._documents is None:
            self._documents = split_documents(self.data)
        return self._documents

    def section(self) -> bytes:
        """The bytes of the section in a message, with its kind byte."""
        return encode_sequence(self.name, (self.data,))


class OpMsg:
    """One OP_MSG: its ids, flags, body and document sequences.

    ``frame`` is the message as it came, so that it can be passed on untouched.
    """

    __slots__ = ("body", "flags", "frame", "request_id", "response_to", "sequences")

    def __init__(self, frame: bytes) -> None:
        """Parse a whole frame whose opcode is OP_MSG.

        Raises:
            RemoteProtocolError: sections that do not add up, unknown required flags, or a wrong checksum.
        """
        try:
            length, self.request_id, self.response_to, _, flags, kind = _unpack_prefix(frame)
        except struct_error:
            raise RemoteProtocolError("an OP_MSG too short for a section") from None
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
            if end < 20 or _UINT32.unpack_from(frame, end)[0] != checksum(frame[:end]):
                raise RemoteProtocolError("OP_MSG checksum does not match contents")
        self.body, self.sequences = _parse_sections(frame, end)

    @property
    def is_more_to_come(self) -> bool:
        """Whether the sender expects no reply to this message (or, in a reply, whether another reply follows)."""
        return bool(self.flags & MORE_TO_COME)

    @property
    def is_exhaust_allowed(self) -> bool:
        """Whether the sender accepts more than one reply."""
        return bool(self.flags & EXHAUST_ALLOWED)


def _parse_sections(frame: bytes, end: int) -> tuple[bytes, list[DocumentSequence]]:
    body: bytes | None = None
    sequences: list[DocumentSequence] = []
    position = 20
    while position < end:
        kind = frame[position]
        position += 1
        if kind == 0:
            if body is not None:
                raise RemoteProtocolError("OP_MSG with more than one body")
            try:
                section_end = position + document_length(frame, position)
            except InvalidBSONError as error:
                raise RemoteProtocolError(f"OP_MSG body: {error}") from error
            if section_end > end:
                raise RemoteProtocolError("OP_MSG body reaches past the message")
            body = frame[position:section_end]
        elif kind == 1:
            section_end = position + _section_length(frame, position, end)
            name_end = frame.find(b"\0", position + 4, section_end)
            if name_end < 0:
                raise RemoteProtocolError("OP_MSG document sequence without a name")
            name = frame[position + 4 : name_end]
            if any(sequence.name == name for sequence in sequences):
                raise RemoteProtocolError(f"OP_MSG with two document sequences named {name.decode(errors='replace')}")
            sequences.append(DocumentSequence(name, frame[name_end + 1 : section_end]))
        else:
            raise RemoteProtocolError(f"OP_MSG section of unknown kind {kind}")
        position = section_end
    if body is None:
        raise RemoteProtocolError("OP_MSG without a body")
    return body, sequences


def _section_length(frame: bytes, position: int, end: int) -> int:
    length = int(_unpack_int32(frame, position)[0]) if position + 4 <= end else 0
    if length < 5 or position + length > end:
        raise RemoteProtocolError(f"OP_MSG document sequence of impossible size {length}")
    return length


def is_one_document(data: bytes) -> bool:
    """Whether these bytes of a document sequence are a single document, by its length prefix."""
    return len(data) > _INT32.size and bool(_unpack_int32(data, 0)[0] == len(data))


def split_documents(data: bytes) -> list[bytes]:
    """Split concatenated documents by their length prefixes.

    Raises:
        RemoteProtocolError: they do not fill ``data`` exactly.
    """
    documents: list[bytes] = []
    position = 0
    end = len(data)
    try:
        while position < end:
            next_position = position + _unpack_int32(data, position)[0]
            if next_position < position + 5 or next_position > end:
                raise RemoteProtocolError("a document of a sequence has an impossible length")
            documents.append(data[position:next_position])
            position = next_position
    except struct_error:
        raise RemoteProtocolError("a document sequence ends within a length") from None
    return documents


def encode_sequence(name: bytes, documents: Iterable[bytes]) -> bytes:
    """A kind 1 section with the given documents."""
    content = b"".join(documents)
    return b"\x01" + _INT32.pack(4 + len(name) + 1 + len(content)) + name + b"\0" + content


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


def with_checksum(frame: bytes) -> bytes:
    """The same OP_MSG frame with its CRC-32C appended and ``checksumPresent`` set."""
    length, request_id, response_to, opcode, flags, kind = _unpack_prefix(frame)
    prefix = _pack_prefix(length + 4, request_id, response_to, opcode, flags | CHECKSUM_PRESENT, kind)
    summed = prefix + frame[21:]
    return summed + _UINT32.pack(checksum(summed))


def without_checksum(frame: bytes) -> bytes:
    """The same OP_MSG frame without its checksum, if it has one."""
    length, request_id, response_to, opcode, flags, kind = _unpack_prefix(frame)
    if not flags & CHECKSUM_PRESENT:
        return frame
    return _pack_prefix(length - 4, request_id, response_to, opcode, flags & ~CHECKSUM_PRESENT, kind) + frame[21:-4]


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
