"""Pipelines that read the cursors of other shards, ``$mergeCursors``, instead of a collection."""

from typing import Final

from shardwright.daemon.first_stage import first_stage_names
from shardwright.wire.request import Request

_MERGE_CURSORS: Final = b"$mergeCursors"


def merges_cursors(request: Request) -> bool:
    """Whether a request is an ``aggregate`` that begins with ``$mergeCursors``; it reads none of its own namespace."""
    if request.name != "aggregate" or _MERGE_CURSORS not in request.body:
        return False
    return _MERGE_CURSORS in first_stage_names(request)
