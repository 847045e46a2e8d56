"""The shards that an aggregation targets, and the bucket span for reads of time series.

The primary shard's view definition gives a read of a time-series collection its span. By the span, mongod skips buckets
that cannot have measurements of the wanted time. A change of the granularity widens it. The span must therefore come
from the catalog, in exactly the version that the shards' requests carry, as in mongos.
"""

from collections.abc import Mapping
from typing import Any, Final

from bson.timestamp import Timestamp

from shardwright.router.pipelines.stages import Place, place_of
from shardwright.router.placement.collection_routing import CollectionRouting
from shardwright.router.reads.aggregate import PIPELINE
from shardwright.router.reads.targeting import shards_for_read
from shardwright.router.reads.views import with_body
from shardwright.sharding.pipelines.leading_filter import leading_filter
from shardwright.sharding.pipelines.pipeline import Pipeline
from shardwright.sharding.pipelines.reads_of_buckets import UNPACK_BUCKET
from shardwright.wire.rawbson import array_of_documents, encode_document, with_value
from shardwright.wire.request import Request


def shards_for_pipeline(
    routing: CollectionRouting,
    pipeline: Pipeline,
    collation: Mapping[str, Any] | None,
    time: Timestamp | None = None,
) -> tuple[str, ...]:
    """Return the shards that a pipeline reads: those its filter targets, or all for statistics of each shard."""
    if place_of(pipeline.first) is Place.DESCRIBES_SHARD:
        return tuple(sorted(routing.shards))
    fields = None if routing.table is None else routing.table.collection.time_series
    return shards_for_read(routing, leading_filter(pipeline, fields), collation, time)


_SPAN: Final = "bucketMaxSpanSeconds"


def with_present_span(request: Request, pipeline: Pipeline, routing: CollectionRouting) -> Request | None:
    """Put the routing table's bucket span into an aggregation; return None if it has that span or reads no buckets."""
    fields = None if routing.table is None else routing.table.collection.time_series
    if fields is None or UNPACK_BUCKET not in pipeline.names:
        return None
    at = pipeline.names.index(UNPACK_BUCKET)
    unpacking, seconds = pipeline.stages[at].specification, fields.span_ms // 1000
    if unpacking.get(_SPAN, seconds) == seconds:
        return None
    stages = [stage.raw for stage in pipeline.stages]
    stages[at] = encode_document({UNPACK_BUCKET: {**unpacking, _SPAN: seconds}})
    return with_body(request, with_value(request.body, request.fields[PIPELINE], array_of_documents(stages)))
