"""The commands that end a transaction on shards."""

from collections.abc import Sequence
from typing import Final

from shardwright.wire.frames import next_request_id
from shardwright.wire.message import op_msg
from shardwright.wire.rawbson import encode_elements, from_elements

_COMMIT: Final = encode_elements({"commitTransaction": 1})
_ABORT: Final = encode_elements({"abortTransaction": 1})
_IN_ADMIN: Final = encode_elements({"$db": "admin"})

IMPLICITLY: Final = encode_elements({"writeConcern": {"w": 1}})
"""The write concern of aborts that no client has asked for."""


def commit_frame(elements: bytes) -> bytes:
    """``commitTransaction``.

    Args:
        elements: the session fields, the write concern and others.
    """
    return _frame(_COMMIT, elements)


def abort_frame(elements: bytes) -> bytes:
    """``abortTransaction``; see `commit_frame`."""
    return _frame(_ABORT, elements)


def coordinate_frame(participants: Sequence[str], elements: bytes) -> bytes:
    """``coordinateCommitTransaction``, which begins a two-phase commit, or without participants asks for its outcome.

    Args:
        participants: the shards.
        elements: see `commit_frame`.
    """
    listed = [{"shardId": shard} for shard in participants]
    return _frame(encode_elements({"coordinateCommitTransaction": 1, "participants": listed}), elements)


def _frame(command: bytes, elements: bytes) -> bytes:
    return op_msg(from_elements(command + elements + _IN_ADMIN), request_id=next_request_id())
