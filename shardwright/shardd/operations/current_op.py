"""What the daemon itself does, shown among the operations of its mongod.

A pipeline that begins with ``$currentOp`` runs on the mongod. The daemon's own operations are put in behind that stage
as a union, so that the rest of the pipeline selects and shapes them like all others.
"""

from collections.abc import Callable, Sequence
from typing import Any

from shardwright.shardd.exchange.sharding_fields import with_body
from shardwright.wire.rawbson import ARRAY, append, array_of_documents, element, encode_document, index, without
from shardwright.wire.request import Request

_ADMIN = "admin"


def union_with(operations: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The stage that adds operations to those before it; nothing in them is taken for an expression."""
    return {"$unionWith": {"pipeline": [{"$documents": [{"$literal": operation} for operation in operations]}]}}


def with_own_operations(request: Request, own: Callable[[], Sequence[dict[str, Any]]]) -> bytes:
    """The frame to pass on for a request: its own, or one that adds the daemon's operations to the current ones.

    Args:
        request: any.
        own: finds the operations of the daemon that nobody sees on the mongod: migrations.
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
    return with_body(request.message, body)
