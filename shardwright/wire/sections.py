"""The sections of an OP_MSG: one body, and document sequences. Errors in them are reported as mongod reports them.

The format is that of https://www.mongodb.com/docs/manual/reference/mongodb-wire-protocol/ (OP_MSG, opcode 2013).
"""

from collections.abc import Iterable
from struct import Struct
from typing import Final

from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import MalformedRequestError
from shardwright.wire.rawbson import DOCUMENT_BYTES_MIN, InvalidBSONError, find

SECTIONS_AT: Final = 20
"""Offset of the first section in a message, after the header and the flags."""

_BODY: Final = 0
_SEQUENCE: Final = 1
_SECURITY_TOKEN: Final = 2

MULTIPLE_BODIES: Final = 40430
DUPLICATE_SEQUENCE: Final = 40431
UNKNOWN_SECTION: Final = 40432
SEQUENCE_IN_BODY_TOO: Final = 40433
NO_BODY: Final = 40587

_INT32: Final = Struct("<i")
_unpack_int32 = _INT32.unpack_from


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
            MalformedRequestError: the documents do not fill the section exactly.
        """
        if self._documents is None:
            self._documents = split_documents(self.data)
        return self._documents

    def section(self) -> bytes:
        """The bytes of the section in a message, with its kind byte."""
        return encode_sequence(self.name, (self.data,))


def parse_sections(frame: bytes, end: int) -> tuple[bytes, list[DocumentSequence]]:
    """The body and the document sequences of a message, whose sections end at ``end``.

    Raises:
        MalformedRequestError: they do not add up.
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
            position += _INT32.size + len(content)
        elif kind == _SECURITY_TOKEN:
            raise MalformedRequestError(ErrorCode.Unauthorized, "Unsupported Security Token provided")
        else:
            raise MalformedRequestError(UNKNOWN_SECTION, f"Unknown section kind {kind}")
    if body is None:
        raise MalformedRequestError(NO_BODY, "OP_MSG messages must have a body")
    _check_sequences_are_not_in(body, sequences)
    return body, sequences


def _document(data: bytes, start: int, end: int) -> bytes:
    """The document that begins at ``start``, of which only the length is checked.

    Raises:
        MalformedRequestError: it does not end by ``end``.
    """
    length = _unpack_int32(data, start)[0] if start + DOCUMENT_BYTES_MIN <= end else 0
    if length < DOCUMENT_BYTES_MIN:
        raise _invalid_bson("BSON data has to be at least 5 bytes")
    if start + length > end:
        raise _invalid_bson("Incorrect BSON length")
    return data[start : start + length]


def _sequence_content(frame: bytes, start: int, end: int) -> bytes:
    """A document sequence without its length.

    Raises:
        MalformedRequestError: its length is impossible.
    """
    left = end - start - _INT32.size
    if left < 0:
        raise _overflow(f"buffer size too small to read (4) bytes out of buffer[{end - start}]")
    length = _unpack_int32(frame, start)[0] - _INT32.size
    if not 0 <= length <= left:
        raise _overflow(f"Invalid advance ({length & 0xFFFFFFFF}) past end of buffer[{left}]")
    start += _INT32.size
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
        # Comparing bytes spares nearly all messages a walk through the fields.
        if sequence.name + b"\0" in body and _has_field(body, sequence.name):
            name = sequence.name.decode(errors="replace")
            message = f"Duplicate field between body and document sequence {name}"
            raise MalformedRequestError(SEQUENCE_IN_BODY_TOO, message)


def _has_field(body: bytes, name: bytes) -> bool:
    try:
        return find(body, name) is not None
    except InvalidBSONError:
        return False  # the error of the request that this becomes


def split_documents(data: bytes) -> list[bytes]:
    """Split concatenated documents by their length prefixes.

    Raises:
        MalformedRequestError: they do not fill ``data`` exactly.
    """
    documents: list[bytes] = []
    position, end = 0, len(data)
    last = end - DOCUMENT_BYTES_MIN
    while position <= last:
        next_position = position + _unpack_int32(data, position)[0]
        if next_position < position + DOCUMENT_BYTES_MIN or next_position > end:
            break
        documents.append(data[position:next_position])
        position = next_position
    if position < end:
        _document(data, position, end)  # raises the error of its length
    return documents


def is_one_document(data: bytes) -> bool:
    """Whether these bytes of a document sequence are a single document, by its length prefix."""
    return len(data) > _INT32.size and bool(_unpack_int32(data, 0)[0] == len(data))


def encode_sequence(name: bytes, documents: Iterable[bytes]) -> bytes:
    """A kind 1 section with the given documents."""
    content = b"".join(documents)
    return b"\x01" + _INT32.pack(4 + len(name) + 1 + len(content)) + name + b"\0" + content


def _invalid_bson(what: str) -> MalformedRequestError:
    text = f"{what} in element with field name '?' in object with unknown _id"
    return MalformedRequestError(ErrorCode.InvalidBSON, text)


def _overflow(what: str) -> MalformedRequestError:
    return MalformedRequestError(ErrorCode.Overflow, f"{what} at offset: 0")
