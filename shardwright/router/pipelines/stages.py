"""The aggregation stages of MongoDB 6.0, and where they may run when several shards hold the documents."""

from enum import Enum
from typing import Final

from shardwright.router.reads.reads_of_buckets import CONVERT_INDEX_STATS, UNPACK_BUCKET

INHIBIT_OPTIMIZATION: Final = "$_internalInhibitOptimization"
"""Passes documents on, and keeps mongod from moving stages across it."""


class Place(Enum):
    """Where a stage runs in a pipeline over several shards."""

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
    **dict.fromkeys(
        ("$collStats", "$currentOp", "$indexStats", "$listCatalog", "$planCacheStats"), Place.DESCRIBES_SHARD
    ),
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
"""A stage that is not listed runs on the merger as it is, which is right for any stage; mongod refuses unknown ones."""

COLLECTIONLESS: Final = frozenset({"$documents", "$listCachedAndActiveUsers", "$listLocalSessions"})
"""Sources that mongod refuses on a collection, if they are the first stage of the whole pipeline."""

_OTHERS: Final = frozenset(
    {
        *("$changeStream", "$listSessions", "$shardedDataDistribution"),
        *("$_addReshardingResumeId", "$_unpackBucket", "$mergeCursors", "$operationMetrics", "$queue"),
        "$setVariableFromSubPipeline",
    }
)
"""Stages that are run in ways of their own, and those of servers."""

WRITING: Final = frozenset({"$merge", "$out"})


def place_of(stage: str) -> Place:
    """Where a stage runs, given its name."""
    return PLACES.get(stage, Place.MERGER)


def is_known(stage: str) -> bool:
    """Whether MongoDB 6.0 has a stage of this name, for clients or for servers."""
    return stage in PLACES or stage in COLLECTIONLESS or stage in _OTHERS or stage.startswith("$_internal")
