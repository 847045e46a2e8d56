"""The aggregation stages of MongoDB 6.0, their place in a pipeline over several shards, and their permitted senders."""

import re
from collections.abc import Iterator
from enum import Enum
from typing import Any, Final

from shardwright.sharding.pipelines.pipeline import CONVERT_INDEX_STATS, DESCRIBE_SHARDS, UNPACK_BUCKET, Pipeline, Stage
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import spans_at_any_depth
from shardwright.wire.request import Request, update_pipelines
from shardwright.wire.request_validation import refuse_repeated_join_fields

INHIBIT_OPTIMIZATION: Final = "$_internalInhibitOptimization"
"""A stage that changes nothing, and across which mongod moves no other stage."""


class Place(Enum):
    """The place of a stage in a pipeline over several shards."""

    MAPS = "turns each document into one; each shard can run it, also after a sort"
    FILTERS = "keeps or drops each document; each shard can run it, also after a sort"
    EACH_SHARD = "works on single documents; each shard can run it, unless the order has to be merged before"
    DESCRIBES_SHARD = "a source; each shard describes itself"
    DIVIDED = "has a part for the shards and a part for the merger"
    MERGER = "needs all documents, or other collections"


PLACES: Final = {
    **dict.fromkeys(("$addFields", "$project", "$replaceRoot", "$replaceWith", "$set", "$unset"), Place.MAPS),
    "$match": Place.FILTERS,
    **dict.fromkeys(("$redact", "$unwind", INHIBIT_OPTIMIZATION, UNPACK_BUCKET, CONVERT_INDEX_STATS), Place.EACH_SHARD),
    **dict.fromkeys(DESCRIBE_SHARDS, Place.DESCRIBES_SHARD),
    **dict.fromkeys(
        ("$bucket", "$count", "$geoNear", "$group", "$limit", "$sample", "$skip", "$sort", "$sortByCount"),
        Place.DIVIDED,
    ),
    **dict.fromkeys(
        (
            *("$bucketAuto", "$densify", "$facet", "$fill", "$graphLookup", "$lookup", "$merge", "$out"),
            *("$setWindowFields", "$unionWith"),
        ),
        Place.MERGER,
    ),
}
"""The places of stages. The merger runs stages that are not listed, which is right for any; mongod refuses unknown
ones."""

COLLECTIONLESS: Final = frozenset({"$documents", "$listCachedAndActiveUsers", "$listLocalSessions"})
"""Sources that mongod refuses on a collection, if they are the first stage of the whole pipeline."""

_OTHERS: Final = frozenset(
    {
        *("$changeStream", "$listSessions", "$shardedDataDistribution"),
        *("$_addReshardingResumeId", "$_unpackBucket", "$mergeCursors", "$operationMetrics", "$queue"),
        "$setVariableFromSubPipeline",
    }
)
"""Stages that need special treatment, and stages that only servers may send."""

WRITING: Final = frozenset({"$merge", "$out"})


def place_of(stage: str) -> Place:
    """Return the place of a stage, given its name."""
    return PLACES.get(stage, Place.MERGER)


def is_known(stage: str) -> bool:
    """Whether MongoDB 6.0 has a stage of this name, for clients or for servers."""
    return stage in PLACES or stage in COLLECTIONLESS or stage in _OTHERS or stage.startswith("$_internal")


NOT_IN_USER_REQUESTS: Final = 5491300
"""MongoDB's error code for an internal stage in the request of a client."""

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
"""Names that mongod 6.0 accepts only from servers. A genuine shard that merges treats this router as a server."""

_SUSPICIOUS: Final = re.compile(rb"\$(?:mergeCursors|doingMerge|_\w+|queue|setVariableFromSubPipeline)\0")


def check_stages(pipeline: Pipeline) -> None:
    """Refuse servers' stages, with which a client could make a mongod read from any server, or crash it.

    Raises:
        CommandError: 5491300; 40413, a join has two fields with the same name.
    """
    for stage in pipeline.stages:
        _check(stage.raw)


def check_update_stages(request: Request) -> None:
    """Refuse servers' stages in the pipelines of an ``update`` or ``findAndModify``.

    A mongod parses each stage before it refuses those that are not allowed in an update.

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


WHOLE_NUMBER_MAX: Final = (1 << 63) - 1


def whole_number(stage: Stage) -> int | None:
    """Return the argument of ``$skip`` or ``$limit``; None if it is invalid, which mongod will report."""
    return _whole(stage.specification, 0 if stage.name == "$skip" else 1)


def sample_size(stage: Stage) -> int | None:
    """Return the size of a ``$sample``; None if it is invalid."""
    specification = stage.specification
    if not isinstance(specification, dict) or set(specification) != {"size"}:
        return None
    return _whole(specification["size"], 1)


def _whole(value: Any, least: int) -> int | None:  # noqa: ANN401 - a BSON value can be anything
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value // 1:
        return None
    return int(value) if least <= value <= WHOLE_NUMBER_MAX else None
