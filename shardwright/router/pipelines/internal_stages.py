"""Stages that only routers may send to shards."""

import re
from collections.abc import Iterator
from typing import Final

from shardwright.router.reads.pipeline import Pipeline
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import spans_at_any_depth
from shardwright.wire.repeated_fields import refuse_repeated_join_fields
from shardwright.wire.request import Request
from shardwright.wire.update_pipelines import update_pipelines

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
        CommandError: 5491300; 40413, a join has two fields of one name.
    """
    for stage in pipeline.stages:
        _check(stage.raw)


def check_update_stages(request: Request) -> None:
    """Refuse such stages in the pipelines of an ``update`` or ``findAndModify``.

    A mongod parses each stage before it refuses those that may not be in an update.

    Raises:
        CommandError: as `check_stages`; an ``update`` has no statements.
    """
    for document, (_, _, start, end) in update_pipelines(request):
        _check(document[start:end])


def _check(document: bytes) -> None:
    if _SUSPICIOUS.search(document) is not None:
        _check_names(name for name, _ in spans_at_any_depth(document))
    refuse_repeated_join_fields(document)


def _check_names(names: Iterator[bytes]) -> None:
    for name in names:
        if name in _OF_ROUTERS:
            raise CommandError(NOT_IN_USER_REQUESTS, f"{name.decode()} is not allowed in user requests")
        if name in _OF_SERVERS:
            raise CommandError(NOT_IN_USER_REQUESTS, f"{name.decode()}' is not allowed in user requests")  # as mongod
