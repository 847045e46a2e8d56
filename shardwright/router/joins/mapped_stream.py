"""Stages on single documents, each of which may take up nearly all of a command together with the stages."""

from collections.abc import Sequence

from shardwright.router.joins.batched_stream import BatchedStream, MappingStep
from shardwright.router.joins.computed_stream import ComputedStream
from shardwright.router.joins.environment import JoinEnvironment
from shardwright.router.joins.stage_building import BATCH_BYTES, COMMAND_BYTES_MAX
from shardwright.router.joins.streams import DocumentStream, ListStream


def mapped_stream(environment: JoinEnvironment, source: DocumentStream, stages: Sequence[bytes]) -> DocumentStream:
    """What stages make of the documents of a stream: a mongod is handed as many at a time as a command can hold.

    A document that does not fit into one command together with the stages and variables is read from this router.

    Args:
        environment: of the aggregation.
        source: the documents.
        stages: raw.
    """

    async def read_alone(document: bytes) -> DocumentStream:
        return ComputedStream(environment, ListStream([document]), stages)

    used = environment.command_bytes(stages)
    step = MappingStep(stages, bytes_max=max(COMMAND_BYTES_MAX - used, 0))
    return BatchedStream(environment, source, step, read_alone, bytes_max=max(BATCH_BYTES - used, 0))
