"""``readOnly`` in a shard's reply to a statement of a transaction: whether no statement has changed anything there yet.

It is the first field of the reply. So the reply still ends as those of mongods do, which routers recognize by comparing
a few bytes, and neither side has to walk over the other fields. Genuine shards have it elsewhere.
"""

from struct import Struct
from typing import Final

from shardwright.wire.frames import OP_MSG
from shardwright.wire.message import BODY_AT, OpMsg, with_body
from shardwright.wire.rawbson import BOOL, append, element

_ELEMENTS: Final = {value: element(b"readOnly", BOOL, bytes([value])) for value in (False, True)}
_NAME: Final = element(b"readOnly", BOOL, b"")
_LENGTH: Final = len(_NAME) + 1

_PREFIX: Final = Struct("<iiiiIBi")
"""The header of an OP_MSG, its flags, the kind of its first section, and the length of its body."""

_NAME_AT: Final = _PREFIX.size
_VALUE_AT: Final = _NAME_AT + len(_NAME)


def with_read_only(frame: bytes, *, is_read_only: bool) -> bytes:
    """A reply with the field.

    Args:
        frame: of an OP_MSG.
        is_read_only: its value.
    """
    length, request_id, response_to, _, flags, kind, body_length = _PREFIX.unpack_from(frame)
    if flags or kind or body_length != length - BODY_AT:
        return with_body(frame, append(OpMsg(frame).body, _ELEMENTS[is_read_only]))
    prefix = _PREFIX.pack(length + _LENGTH, request_id, response_to, OP_MSG, 0, 0, body_length + _LENGTH)
    return b"".join((prefix, _ELEMENTS[is_read_only], frame[_NAME_AT:]))


def take_read_only(frame: bytes) -> tuple[bytes, bool] | None:
    """A reply without the field, and its value; None if it is not the first field."""
    if not frame.startswith(_NAME, _NAME_AT):
        return None
    length, request_id, response_to, opcode, flags, kind, body_length = _PREFIX.unpack_from(frame)
    prefix = _PREFIX.pack(length - _LENGTH, request_id, response_to, opcode, flags, kind, body_length - _LENGTH)
    return prefix + frame[_VALUE_AT + 1 :], bool(frame[_VALUE_AT])
