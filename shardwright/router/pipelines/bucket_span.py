"""The span of buckets in a pipeline that reads a time-series collection.

A read of ``X`` has it from the primary shard's definition of the view, and mongod leaves out by it the buckets that
cannot have measurements of the wanted time. A change of the granularity widens it; so it has to be that of the catalog,
in the very version with which the shards are asked, as in MongoDB's routers.
"""

from typing import Final

from shardwright.router.placement.collection_routing import CollectionRouting
from shardwright.router.reads.aggregate import PIPELINE
from shardwright.router.reads.pipeline import Pipeline
from shardwright.router.reads.reads_of_buckets import UNPACK_BUCKET
from shardwright.router.reads.view_aggregate import with_body
from shardwright.wire.rawbson import array_of_documents, encode_document, with_value
from shardwright.wire.request import Request

_SPAN: Final = "bucketMaxSpanSeconds"


def with_present_span(request: Request, pipeline: Pipeline, routing: CollectionRouting) -> Request | None:
    """The aggregation with the span of the routing table; None if it has that already, or reads no buckets."""
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
