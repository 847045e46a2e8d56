"""Replies that report the term in which a mongod executed a command, and replies that report a failure."""

from struct import Struct
from typing import Final

from shardwright.wire.frames import OP_MSG
from shardwright.wire.message import CHECKSUM_PRESENT, OpMsg, with_body
from shardwright.wire.rawbson import INT32, INT64, element, find, without

FAILED: Final = b"\x01ok\0" + bytes(8)
"""A failed command's reply begins with ``ok: 0``, a mongod's as well as a daemon's."""

BODY_ELEMENTS_AT: Final = 25
"""Offset of the body's elements in the frame."""


def has_failed(reply: bytes | None) -> bool:
    """Whether a reply's frame reports a failed command."""
    return reply is not None and reply.startswith(FAILED, BODY_ELEMENTS_AT)


ASK_FOR_TERM: Final = element(b"$replData", INT32, (1).to_bytes(4, "little"))
"""The element to append to the body of a request."""

_NAME: Final = b"$replData"
_METADATA: Final = b"\x03" + _NAME + b"\0"
_TERM: Final = b"\x12term\0"
_TERM_AT: Final = len(_METADATA) + 4 + len(_TERM)
_TAIL_BYTES: Final = 1024
"""More than the size of the elements after the command's own."""

_PREFIX: Final = Struct("<iiiiIBi")
"""The header of an OP_MSG, its flags, the kind of its first section, and the length of its body."""


def take_term(frame: bytes) -> tuple[bytes, int | None]:
    """Split a reply into the reply without the added elements, and the term in them; None if nothing was added.

    mongod adds nothing if it refuses a command before processing it, for example an unknown one. The error may then
    quote any bytes of the client, so all elements must be parsed.
    """
    start = frame.rfind(_METADATA, -_TAIL_BYTES)
    if start < 0:
        return frame, None
    if has_failed(frame):
        return _take_term_of_any(frame)
    length, request_id, response_to, _, flags, kind, body_bytes = _PREFIX.unpack_from(frame)
    document_at = start + len(_METADATA)
    metadata_bytes = len(_METADATA) + int.from_bytes(frame[document_at : document_at + 4], "little")
    is_plain = not flags & CHECKSUM_PRESENT and not kind and body_bytes == length - 21
    if not is_plain or not frame.startswith(_TERM, document_at + 4):
        return _take_term_of_any(frame)
    term = int.from_bytes(frame[start + _TERM_AT : start + _TERM_AT + 8], "little")
    prefix = _PREFIX.pack(
        length - metadata_bytes, request_id, response_to, OP_MSG, flags, 0, body_bytes - metadata_bytes
    )
    return prefix + frame[_PREFIX.size : start] + frame[start + metadata_bytes :], term


def term_of_body(body: bytes) -> int | None:
    """Return the term in the body of a reply; None if there is none."""
    metadata = find(body, _NAME)
    term = None if metadata is None else find(body, b"term", metadata[2])
    return None if term is None or term[0] != INT64 else int.from_bytes(body[term[2] : term[3]], "little")


def _take_term_of_any(frame: bytes) -> tuple[bytes, int | None]:
    message = OpMsg(frame)
    term = term_of_body(message.body)
    if term is None:
        return frame, None
    return with_body(frame, without(message.body, {_NAME})), term
