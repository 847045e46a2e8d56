"""``$out`` and ``$merge`` behind a join: the mongod of the shard that has the target writes.

It gets the results as its input. So a ``$out`` replaces the target at once or, if the pipeline fails, not at all, and
all modes of ``$merge`` mean what they always mean.
"""

from typing import Final

from shardwright.router.joins.environment import JoinEnvironment
from shardwright.router.joins.handed_stream import HandedStream, hand_over
from shardwright.router.joins.memory import Room
from shardwright.router.joins.stage_building import documents_stage
from shardwright.router.joins.streams import DocumentStream
from shardwright.router.operations.foreign_collections import OUT_TO_SHARDED, foreign_collections
from shardwright.router.operations.retry import with_routing
from shardwright.router.operations.scatter import send_to_one
from shardwright.router.pipelines.read_before_writing import reading_before_writing, with_disk
from shardwright.router.placement.collection_routing import CollectionRouting
from shardwright.router.reads.pipeline import Pipeline, Stage
from shardwright.router.replies.cursor_reply import FIRST_BATCH, cursor_element
from shardwright.router.replies.own_reply import Reply
from shardwright.router.replies.shard_reply import ShardReply
from shardwright.wire.errors import CommandError
from shardwright.wire.message import op_msg
from shardwright.wire.rawbson import append
from shardwright.wire.read_preference import PRIMARY

_WRITE_CONCERN_ERROR: Final = b"writeConcernError"


class TargetShardedError(Exception):
    """The target of a ``$merge`` turned out to be sharded, before anything was written. Its routing is known now."""


async def write_results(
    environment: JoinEnvironment, source: DocumentStream, stage: Stage, cursor_namespace: str
) -> Reply:
    """Write the documents of a stream; the reply to the aggregation.

    Args:
        environment: of the aggregation.
        source: the documents.
        stage: the ``$out`` or ``$merge``. The target of a ``$merge`` is not sharded.
        cursor_namespace: of the client's cursor, which has no documents.

    Raises:
        TargetShardedError: see there.
        CommandError: the documents could not be read or written; 28769, the target of ``$out`` is sharded.
    """
    operation = environment.operation
    handed: HandedStream | None = None
    is_done = False
    try:
        handed = await hand_over(environment, source)
        reply = await _write(environment, handed, stage)
        is_done = True
    finally:
        if not is_done:
            if handed is not None:
                handed.discard()
            operation.context.cursors.kill_remotes(source.remotes)
    failed = reply.fields.get(_WRITE_CONCERN_ERROR)
    elements = b"" if failed is None else reply.body[failed[1] : failed[3]]
    return operation.raw_reply(*cursor_element(FIRST_BATCH, [], 0, cursor_namespace), elements)


async def _write(environment: JoinEnvironment, handed: HandedStream, stage: Stage) -> ShardReply:
    operation, pipeline = environment.operation, Pipeline((stage,))
    stages = reading_before_writing((stage,))
    body = with_disk(environment.writing_command([handed.stage, *(each.raw for each in stages)]))

    async def attempt(routing: CollectionRouting) -> ShardReply:
        if routing.is_sharded:
            raise _became_sharded(routing, stage)
        shard = routing.primary
        foreign = await foreign_collections(operation, pipeline, shard, PRIMARY, create_databases=True)
        frame = op_msg(append(body, foreign.version_elements), request_id=operation.request.message.request_id)
        with foreign.blamed():
            reply = await send_to_one(operation, shard, frame)
            reply.raise_for_error()
        return reply

    names = tuple(pipeline.involved_namespaces(environment.db))
    if names:
        return await with_routing(operation, names[0], attempt, create_database=True)
    await environment.collect(await environment.compute([documents_stage(()), stage.raw]), Room(0))
    raise AssertionError(f"a mongod accepts a {stage.name} that names no collection")


def _became_sharded(routing: CollectionRouting, stage: Stage) -> Exception:
    if stage.name == "$out":
        return CommandError(OUT_TO_SHARDED, f"{routing.namespace} cannot be sharded")
    return TargetShardedError(routing.namespace)
