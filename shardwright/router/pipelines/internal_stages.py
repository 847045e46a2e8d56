"""Stages that only routers may send to shards."""

import re
from collections.abc import Iterator
from typing import Final

from shardwright.router.reads.pipeline import Pipeline
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import ARRAY, OBJECT, spans

NOT_IN_USER_REQUESTS: Final = 5491300
"""MongoDB's number for an internal stage in the request of a client."""

_OF_ROUTERS: Final = frozenset({b"$mergeCursors", b"$doingMerge"})
_OF_SERVERS: Final = frozenset(
    {
        *(b"$_addReshardingResumeId", b"$_internalChangeStreamAddPostImage", b"$_internalChangeStreamAddPreImage"),
        *(b"$_internalChangeStreamCheckInvalidate", b"$_internalChangeStreamCheckResumability"),
        *(b"$_internalChangeStreamCheckTopologyChange", b"$_internalChangeStreamOplogMatch"),
        *(b"$_internalChangeStreamTransform", b"$_internalChangeStreamUnwindTransaction", b"$_internalDensify"),
        *(b"$_internalFindAndModifyImageLookup", b"$_internalReshardingIterateTransaction"),
        *(b"$_internalReshardingOwnershipMatch", b"$queue", b"$setVariableFromSubPipeline"),
    }
)
"""What mongod 6.0 takes from other servers only. A genuine shard that merges takes this router for one."""

_SUSPICIOUS: Final = re.compile(rb"\$(?:mergeCursors|doingMerge|_\w+|queue|setVariableFromSubPipeline)\0")


def check_stages(pipeline: Pipeline) -> None:
    """Refuse stages of servers, with which a client could make a mongod read any server, or bring it down.

    Raises:
        CommandError: 5491300.
    """
    for stage in pipeline.stages:
        if _SUSPICIOUS.search(stage.raw) is not None:
            _check_names(_names(stage.raw))


def _check_names(names: Iterator[bytes]) -> None:
    for name in names:
        if name in _OF_ROUTERS:
            raise CommandError(NOT_IN_USER_REQUESTS, f"{name.decode()} is not allowed in user requests")
        if name in _OF_SERVERS:
            raise CommandError(NOT_IN_USER_REQUESTS, f"{name.decode()}' is not allowed in user requests")  # as mongod


def _names(document: bytes, start: int = 0) -> Iterator[bytes]:
    for name, (kind, _, value_start, _) in spans(document, start):
        yield name
        if kind in (OBJECT, ARRAY):
            yield from _names(document, value_start)
