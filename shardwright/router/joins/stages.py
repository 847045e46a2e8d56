"""Running the stages of a pipeline on a stream of documents."""

from collections.abc import Sequence
from typing import Final

from shardwright.router.joins.batched_stream import BatchedStream
from shardwright.router.joins.computed_stream import ComputedStream
from shardwright.router.joins.environment import COLLECTIONLESS, JoinEnvironment
from shardwright.router.joins.facet import FacetStream
from shardwright.router.joins.graph_lookup import GraphLookup
from shardwright.router.joins.graph_step import GraphStep
from shardwright.router.joins.lookup import Lookup
from shardwright.router.joins.lookup_step import LookupStep
from shardwright.router.joins.mapped_stream import mapped_stream
from shardwright.router.joins.narrowed_group import narrowed
from shardwright.router.joins.streams import ConcatenatedStream, DocumentStream
from shardwright.router.joins.union_with import UnionWith
from shardwright.router.reads.pipeline import Pipeline, Stage
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError

_SINGLE_DOCUMENT: Final = frozenset(
    {
        *("$project", "$addFields", "$set", "$unset", "$replaceRoot", "$replaceWith"),
        *("$match", "$redact", "$unwind"),
    }
)
_EXTENDING: Final = frozenset({"$lookup", "$graphLookup"})


async def run_stages(
    environment: JoinEnvironment, source: DocumentStream, stages: Sequence[Stage | bytes]
) -> DocumentStream:
    """The results of a pipeline whose input is a stream.

    Args:
        environment: of the aggregation.
        source: the input, which ends if the pipeline is refused.
        stages: the stages, none of which writes; those that are raw are parsed.

    Raises:
        CommandError: a stage is wrong; OperationNotSupportedInTransaction, a ``$unionWith`` is part of a transaction.
    """
    is_open = False
    try:
        stream = _run_stages(environment, source, stages)
        is_open = True
        return stream
    finally:
        if not is_open:
            environment.operation.context.cursors.kill_remotes(source.remotes)


def _run_stages(
    environment: JoinEnvironment, source: DocumentStream, stages: Sequence[Stage | bytes]
) -> DocumentStream:
    rest = [Stage.parse(each) if isinstance(each, bytes) else each for each in stages]
    stream = source
    while rest:
        if _names_others(rest[0], environment.db):
            stage = rest.pop(0)
            tail = _take_tail(rest, environment.db) if stage.name in _EXTENDING else []
            stream = _joined(environment, stream, stage, tail)
        elif rest[0].name in _SINGLE_DOCUMENT:
            stream = mapped_stream(environment, stream, _take_single_document(rest, environment.db))
        else:
            stream = ComputedStream(environment, stream, _take_others(rest, environment.db))
    return stream


def _joined(
    environment: JoinEnvironment, source: DocumentStream, stage: Stage, tail: Sequence[bytes]
) -> DocumentStream:
    if stage.name == "$lookup":
        lookup = LookupStep(environment, Lookup.parse(_raw(stage)), tail, run_stages)
        return BatchedStream(environment, source, lookup, lookup.run_alone)
    if stage.name == "$graphLookup":
        graph = GraphStep(environment, GraphLookup.parse(_raw(stage)), tail)
        return BatchedStream(environment, source, graph, graph.run_alone)
    if stage.name == "$facet":
        return FacetStream(environment, source, stage, run_stages)
    if stage.name == "$unionWith":
        if environment.operation.transaction is not None:
            raise CommandError(
                ErrorCode.OperationNotSupportedInTransaction,
                f"Stage not supported inside of a multi-document transaction: {stage.name}",
            )
        union = UnionWith.parse(stage)
        collection = COLLECTIONLESS if union.collection is None else union.collection
        return ConcatenatedStream(source, lambda: environment.read(collection, union.stages))
    raise AssertionError(f"{stage.name} names no collections")


def _raw(stage: Stage) -> bytes:
    """The specification of a stage, a document."""
    _, _, start, end = stage.span
    return stage.raw[start:end]


def _names_others(stage: Stage, db: str) -> bool:
    return bool(Pipeline((stage,)).involved_namespaces(db))


def _take_single_document(rest: list[Stage], db: str) -> list[bytes]:
    taken: list[bytes] = []
    while rest and rest[0].name in _SINGLE_DOCUMENT and not _names_others(rest[0], db):
        taken.append(rest.pop(0).raw)
    return taken


def _take_tail(rest: list[Stage], db: str) -> list[bytes]:
    """What the mongod that joins does with the documents before it returns them."""
    taken = _take_single_document(rest, db)
    halves = narrowed(rest[0]) if rest and rest[0].name == "$group" else None
    if halves is not None:
        values, rest[0] = halves
        taken.append(values)
    return taken


def _take_others(rest: list[Stage], db: str) -> list[bytes]:
    taken = [rest.pop(0).raw]
    while rest and not _names_others(rest[0], db):
        taken.append(rest.pop(0).raw)
    return taken
