"""The condition by which an aggregation is targeted."""

from collections.abc import Iterator, Sequence
from typing import Final

from shardwright.sharding.pipelines.pipeline import Pipeline, Stage
from shardwright.sharding.pipelines.reads_of_buckets import UNPACK_BUCKET
from shardwright.sharding.targeting.bucket_filters import bucket_filter
from shardwright.sharding.time_series import TimeSeriesFields
from shardwright.wire.rawbson import ARRAY, EMPTY_DOCUMENT, OBJECT, array_of_documents, element, find, from_elements

DESCRIBE_SHARDS: Final = frozenset({"$collStats", "$currentOp", "$indexStats", "$listCatalog", "$planCacheStats"})
"""Sources with which each shard describes itself: all shards of the collection receive them."""


def leading_filter(pipeline: Pipeline, fields: TimeSeriesFields | None = None) -> bytes:
    """Return the raw filter that all documents of the collection have to pass, empty if there is none.

    It consists of all leading ``$match`` stages, between which only sorts may stand, and the ``query`` of a
    ``$geoNear``. With the ``fields`` of a collection of buckets, a filter of measurements becomes a filter of buckets.
    """
    filters = list(_filters(pipeline.stages, fields))
    if len(filters) < 2:
        return filters[0] if filters else EMPTY_DOCUMENT
    return from_elements(element(b"$and", ARRAY, array_of_documents(filters)))


def _filters(stages: Sequence[Stage], fields: TimeSeriesFields | None) -> Iterator[bytes]:
    are_measurements = False
    for stage in stages:
        kind, _, start, end = stage.span
        if stage.name == "$match" and kind == OBJECT:
            given = stage.raw[start:end]
            yield given if fields is None or not are_measurements else bucket_filter(given, fields)
        elif stage.name == "$geoNear" and kind == OBJECT and not are_measurements:
            query = find(stage.raw, b"query", start)
            if query is not None and query[0] == OBJECT:
                yield stage.raw[query[2] : query[3]]
            return  # its distance may be stored in a field of the shard key
        elif stage.name == UNPACK_BUCKET and fields is not None:
            are_measurements = True
        elif stage.name != "$sort":
            return
