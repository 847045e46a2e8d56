"""Pipelines that read the cursors of other shards, ``$mergeCursors``, instead of a collection."""

from typing import Final

from shardwright.wire.rawbson import ARRAY, OBJECT, spans
from shardwright.wire.request import Request

_MERGE_CURSORS: Final = b"$mergeCursors"


def merges_cursors(request: Request) -> bool:
    """Whether a request is an ``aggregate`` that begins with ``$mergeCursors``; it reads none of its own namespace."""
    span = request.fields.get(b"pipeline")
    if request.name != "aggregate" or span is None or span[0] != ARRAY or _MERGE_CURSORS not in request.body:
        return False
    first = next(spans(request.body, span[2]), None)
    if first is None or first[1][0] != OBJECT:
        return False
    return any(name == _MERGE_CURSORS for name, _ in spans(request.body, first[1][2]))
