"""Showing the daemon's own operations among those of its mongod.

A pipeline that begins with ``$currentOp`` runs on mongod. The daemon's operations are added after that stage by a
``$unionWith``, so that the rest of the pipeline filters and projects them like all others.
"""

from collections.abc import Callable, Sequence
from typing import Any

from shardwright.wire.message import CHECKSUM_PRESENT, op_msg
from shardwright.wire.rawbson import ARRAY, append, array_of_documents, element, encode_document, index, without
from shardwright.wire.request import Request

_ADMIN = "admin"


def union_with(operations: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The stage that adds operations to its input; nothing in them is evaluated as an expression."""
    return {"$unionWith": {"pipeline": [{"$documents": [{"$literal": operation} for operation in operations]}]}}


def with_daemon_operations(request: Request, own: Callable[[], Sequence[dict[str, Any]]]) -> bytes:
    """The frame to forward for a request: its own, or one that adds the daemon's operations to ``$currentOp``.

    Args:
        request: any request.
        own: returns the daemon's operations that mongod does not know, such as migrations.
    """
    frame = request.message.frame
    if request.name != "aggregate" or request.db != _ADMIN or b"pipeline" not in request.fields:
        return frame
    operations = own()
    if not operations:
        return frame
    pipeline = request.documents(b"pipeline")
    if not pipeline or next(iter(index(pipeline[0])), b"") != b"$currentOp":
        return frame
    stages = [pipeline[0], encode_document(union_with(operations)), *pipeline[1:]]
    body = append(without(request.body, {b"pipeline"}), element(b"pipeline", ARRAY, array_of_documents(stages)))
    message = request.message
    return op_msg(body, request_id=message.request_id, flags=message.flags & ~CHECKSUM_PRESENT)
