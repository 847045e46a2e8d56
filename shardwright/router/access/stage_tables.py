"""The stages of pipelines that users may send, by what they read."""

from collections.abc import Mapping
from typing import Final

from shardwright.daemon.privileges import CLUSTER
from shardwright.router.access.needs import Need
from shardwright.router.access.own_sessions import LISTS_OF_SESSIONS

OF_COLLECTION: Final[Mapping[str, tuple[str, ...]]] = {
    "$collStats": ("collStats",),
    "$indexStats": ("indexStats",),
    "$planCacheStats": ("planCacheRead",),
    "$listCatalog": ("listCollections", "listIndexes"),
}
"""First stages that read no documents, and what they need on the collection instead."""

WITHOUT_NAMES: Final = frozenset(
    {
        *("$addFields", "$bucket", "$bucketAuto", "$count", "$densify", "$fill", "$geoNear", "$group", "$limit"),
        *("$match", "$project", "$redact", "$replaceRoot", "$replaceWith", "$sample", "$set"),
        *("$setWindowFields", "$skip", "$sort", "$sortByCount", "$unset", "$unwind"),
    }
)
"""Stages that name no other collection."""

WITHOUT_USER: Final = {
    **dict.fromkeys(LISTS_OF_SESSIONS, Need("listSessions", CLUSTER)),
    "$currentOp": Need("inprog", CLUSTER),
}
"""What stages need as the first of a joined pipeline, where the user is not named to shards."""

SOURCES: Final = frozenset(
    {*OF_COLLECTION, *LISTS_OF_SESSIONS, "$changeStream", "$currentOp", "$documents", "$shardedDataDistribution"}
)
"""Stages that can only be the first. Elsewhere the command fails, for those who may do what they need."""

FOR_CLUSTER_ALONE: Final = frozenset(
    {
        *("$_addReshardingResumeId", "$_unpackBucket", "$listCachedAndActiveUsers", "$mergeCursors"),
        *("$operationMetrics", "$queue", "$setVariableFromSubPipeline"),
    }
)
"""Stages that MongoDB knows and no user may send, beside those that are called internal."""
