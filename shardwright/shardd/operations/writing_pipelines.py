"""Pipelines that write: ``$out`` and ``$merge``."""

from typing import Final

import bson

from shardwright.sharding.involved_namespaces import may_involve_others, writes
from shardwright.wire.message import CHECKSUM_PRESENT, OpMsg, op_msg
from shardwright.wire.rawbson import ARRAY, OBJECT, with_value
from shardwright.wire.request import Request

_NO_BATCH_SIZE: Final = bson.encode({})


def is_writing(request: Request) -> bool:
    """Whether a request is an ``aggregate`` that writes; an explain does not.

    Raises:
        CommandError: InvalidBSON.
    """
    if request.name != "aggregate" or not may_involve_others(request.body):
        return False
    span = request.fields.get(b"pipeline")
    return span is not None and span[0] == ARRAY and writes(request.body, span[2])


def without_batch_size(request: Request) -> Request:
    """The same ``aggregate`` without ``batchSize``, so that mongod writes before it replies.

    With ``batchSize: 0`` mongod would open a cursor and write at the first ``getMore``, which carries no version. Other
    sizes do not matter, since there are no results.
    """
    span = request.fields.get(b"cursor")
    if span is None or span[0] != OBJECT:
        return request  # malformed, which mongod reports
    message = request.message
    body = with_value(request.body, span, _NO_BATCH_SIZE)
    return Request(OpMsg(op_msg(body, request_id=message.request_id, flags=message.flags & ~CHECKSUM_PRESENT)))
