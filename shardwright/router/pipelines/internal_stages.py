"""Stages that only routers may send to shards."""

from collections.abc import Iterator
from typing import Final

from shardwright.router.reads.pipeline import Pipeline
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import ARRAY, OBJECT, spans

NOT_IN_USER_REQUESTS: Final = 5491300
"""MongoDB's number for an internal stage in the request of a client."""

_INTERNAL: Final = (b"$mergeCursors\0", b"$doingMerge\0")


def check_stages(pipeline: Pipeline) -> None:
    """Refuse stages with which a client could make a mongod read any server, or merge what is no partial state.

    Raises:
        CommandError: 5491300.
    """
    for stage in pipeline.stages:
        if any(name in stage.raw for name in _INTERNAL):
            _check_names(_names(stage.raw))


def _check_names(names: Iterator[bytes]) -> None:
    for name in names:
        if name + b"\0" in _INTERNAL:
            raise CommandError(NOT_IN_USER_REQUESTS, f"{name.decode()} is not allowed in user requests")


def _names(document: bytes, start: int = 0) -> Iterator[bytes]:
    for name, (kind, _, value_start, _) in spans(document, start):
        yield name
        if kind in (OBJECT, ARRAY):
            yield from _names(document, value_start)
