"""Successful replies whose content is raw BSON already."""

from shardwright.router.operation import Operation
from shardwright.wire.message import reply
from shardwright.wire.rawbson import encode_elements, from_elements


def raw_reply(operation: Operation, elements: bytes) -> bytes:
    """The frame of the reply to a command.

    Args:
        operation: the command.
        elements: raw elements of the reply, before ``ok`` and the times that every reply ends with.
    """
    trailer = encode_elements({"ok": 1.0, **operation.router.gossip()})
    return reply(operation.request.message.request_id, from_elements(elements + trailer))
