"""Giving a request to a shard the session fields of its transaction, as raw bytes."""

from struct import Struct
from typing import Final

from shardwright.router.transactions.session_fields import OF_TRANSACTIONS
from shardwright.wire.message import BODY_AT
from shardwright.wire.rawbson import index

_INT32: Final = Struct("<i")


def in_transaction(frame: bytes, elements: bytes) -> bytes:
    """A request with these session fields in place of those that it has; nothing else of it is looked at.

    Args:
        frame: an OP_MSG of `wire.message.op_msg`, whose first section is the body.
        elements: from `RouterTransaction.join`.
    """
    end = BODY_AT + int(_INT32.unpack_from(frame, BODY_AT)[0])
    kept: list[bytes] = []
    kept_from = BODY_AT + 4
    for name, (_, element_start, _, value_end) in index(frame, BODY_AT).items():
        if name in OF_TRANSACTIONS:
            kept.append(frame[kept_from:element_start])
            kept_from = value_end
    kept += (frame[kept_from : end - 1], elements, frame[end - 1 :])
    length = sum(map(len, kept)) + BODY_AT + 4
    body_length = length - BODY_AT - (len(frame) - end)
    return b"".join((_INT32.pack(length), frame[4:BODY_AT], _INT32.pack(body_length), *kept))
