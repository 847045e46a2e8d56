"""A key by which an operation can be ended on a shard before it has answered, as in MongoDB."""

import os
from struct import Struct
from typing import Final

import bson
from bson.binary import UUID_SUBTYPE, Binary

from shardwright.wire.frames import next_request_id
from shardwright.wire.message import OpMsg, op_msg
from shardwright.wire.rawbson import BINARY, append, element, without

_NAME: Final = b"clientOperationKey"
_UUID_BYTES: Final = 16
_PREFIX: Final = Struct("<iB").pack(_UUID_BYTES, UUID_SUBTYPE)


class OperationKey:
    """A random key (``clientOperationKey``)."""

    __slots__ = ("_uuid",)

    def __init__(self) -> None:
        self._uuid = os.urandom(_UUID_BYTES)

    def added_to(self, frame: bytes) -> bytes:
        """A request, as the operation with this key in place of the client's."""
        message = OpMsg(frame)
        body = without(message.body, (_NAME,)) if _NAME in message.body else message.body
        return op_msg(
            append(body, element(_NAME, BINARY, _PREFIX + self._uuid)),
            request_id=message.request_id,
            sections=b"".join(sequence.section() for sequence in message.sequences),
        )

    def killing(self) -> bytes:
        """The request that ends the operation, or kills the cursor that it has opened."""
        keys = [Binary(self._uuid, UUID_SUBTYPE)]
        body = bson.encode({"_killOperations": 1, "operationKeys": keys, "$db": "admin"})
        return op_msg(body, request_id=next_request_id())
