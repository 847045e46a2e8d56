"""The shards that an aggregation targets."""

from collections.abc import Iterator, Mapping
from typing import Any

from bson.timestamp import Timestamp

from shardwright.router.pipelines.stages import Place, place_of
from shardwright.router.placement.collection_routing import CollectionRouting
from shardwright.router.reads.pipeline import Pipeline
from shardwright.router.reads.targeting import shards_for_read
from shardwright.wire.rawbson import (
    ARRAY,
    EMPTY_DOCUMENT,
    OBJECT,
    array_of_documents,
    element,
    find,
    from_elements,
)


def shards_for_pipeline(
    routing: CollectionRouting,
    pipeline: Pipeline,
    collation: Mapping[str, Any] | None,
    time: Timestamp | None = None,
) -> tuple[str, ...]:
    """The shards that a pipeline reads: those its filter targets, or all for statistics of each shard."""
    if place_of(pipeline.first) is Place.DESCRIBES_SHARD:
        return tuple(sorted(routing.shards))
    return shards_for_read(routing, leading_filter(pipeline), collation, time)


def leading_filter(pipeline: Pipeline) -> bytes:
    """The raw filter that all documents of the collection have to pass, empty if there is none.

    It consists of all ``$match`` stages behind nothing but each other and sorts, and the ``query`` of a ``$geoNear``.
    """
    filters = list(_filters(pipeline))
    if len(filters) < 2:
        return filters[0] if filters else EMPTY_DOCUMENT
    return from_elements(element(b"$and", ARRAY, array_of_documents(filters)))


def _filters(pipeline: Pipeline) -> Iterator[bytes]:
    for stage in pipeline.stages:
        kind, _, start, end = stage.span
        if stage.name == "$match" and kind == OBJECT:
            yield stage.raw[start:end]
        elif stage.name == "$geoNear" and kind == OBJECT:
            query = find(stage.raw, b"query", start)
            if query is not None and query[0] == OBJECT:
                yield stage.raw[query[2] : query[3]]
            return  # its distance may be stored in a field of the shard key
        elif stage.name != "$sort":
            return
