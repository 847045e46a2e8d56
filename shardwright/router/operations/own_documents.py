"""Pipelines over documents that the router itself has."""

from typing import Any

import bson

from shardwright.router.operations.cursor_opening import open_on_one_shard
from shardwright.router.operations.operation import Operation
from shardwright.router.operations.scatter import forwarded
from shardwright.router.reads.pipeline import Pipeline
from shardwright.router.replies.own_reply import Reply
from shardwright.wire.stages import with_stages


async def aggregate_own_documents(
    operation: Operation, documents: list[dict[str, Any]], pipeline: Pipeline, shard: str
) -> Reply:
    """Let a shard run the stages that follow the source of a pipeline, on documents from this router.

    Args:
        operation: the aggregation.
        documents: what the source, which is the first stage, returns.
        pipeline: the stages.
        shard: any shard.

    Raises:
        CommandError: the shard failed; the documents are too large for one message.
    """
    source = bson.encode({"$documents": {"$literal": documents}})
    stages = (source, *(stage.raw for stage in pipeline.stages[1:]))
    frame = forwarded(operation, b"", with_stages(operation.request.body, stages))
    return await open_on_one_shard(operation, shard, frame)
