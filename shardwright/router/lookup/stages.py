"""Running the stages of a pipeline, one after another, on documents of the router.

Each pipeline of a ``$facet`` that joins receives all documents, through a `Tee`. A ``$group`` after a join runs in two
steps: the mongod that joins evaluates its expressions and returns only their values, which are then grouped. The reason
is that a joined document may be larger than any document that can pass through the router.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import trio

from shardwright.router.exec.combined import Tee, TeeReader, UnionStage
from shardwright.router.exec.remote import RemoteCursor
from shardwright.router.exec.stage import GetMore, Stage
from shardwright.router.lookup.environment import COLLECTIONLESS, JoinEnvironment, StageRunner
from shardwright.router.lookup.graph_lookup import GraphLookup, GraphStep
from shardwright.router.lookup.lookup import Lookup, begins_with_documents, string_at
from shardwright.router.lookup.lookup_step import LookupStep
from shardwright.router.lookup.mongod_stages import BatchedStage, ComputedStage, mapped_stage
from shardwright.router.lookup.pipeline_input import Room, TooLargeError
from shardwright.sharding.pipelines.pipeline import Pipeline
from shardwright.sharding.pipelines.pipeline import Stage as PipelineStage
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.limits import BSON_OBJECT_INTERNAL_BYTES_MAX, check_size
from shardwright.wire.rawbson import (
    ARRAY,
    OBJECT,
    STRING,
    Span,
    array_documents,
    array_of_documents,
    element,
    from_elements,
    index,
    spans,
    string_value,
)


class FacetStage(Stage):
    """The single result of a ``$facet``."""

    def __init__(
        self, environment: JoinEnvironment, source: Stage, stage: PipelineStage, run_stages: StageRunner
    ) -> None:
        self._environment = environment
        self._source = source
        self._run_stages = run_stages
        self._facets: dict[bytes, tuple[bytes, ...]] | None = _parse(stage)

    @property
    def remotes(self) -> Sequence[RemoteCursor]:
        """See `Stage`."""
        return self._source.remotes

    async def next_batch(self, get_more: GetMore) -> list[bytes]:
        """See `Stage`."""
        if self._facets is None:
            return []
        facets, self._facets = self._facets, None
        results = await self._results(facets, get_more)
        return [from_elements(b"".join(element(name, ARRAY, array_of_documents(results[name])) for name in facets))]

    async def _results(self, facets: Mapping[bytes, Sequence[bytes]], get_more: GetMore) -> dict[bytes, list[bytes]]:
        """Run all pipelines concurrently; return their results."""
        results: dict[bytes, list[bytes]] = {}
        failures: list[CommandError] = []
        tee, room = Tee(self._source, len(facets)), Room(BSON_OBJECT_INTERNAL_BYTES_MAX)

        async def run(name: bytes, reader: TeeReader, stages: Sequence[bytes]) -> None:
            try:
                stream = await self._run_stages(self._environment, reader, stages)
                results[name] = await self._environment.collect(stream, room)
            except CommandError as error:
                fail(error)
            await tee.leave(reader)

        async def pump() -> None:
            try:
                await tee.pump(get_more)
            except CommandError as error:
                fail(error)

        def fail(error: CommandError) -> None:
            failures.append(error)
            nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(pump)
            for (name, stages), reader in zip(facets.items(), tee.readers, strict=True):
                nursery.start_soon(run, name, reader, stages)
        if failures:
            if isinstance(failures[0], TooLargeError):
                check_size(BSON_OBJECT_INTERNAL_BYTES_MAX - room.bytes_left)
            raise failures[0]
        return results


def _parse(stage: PipelineStage) -> dict[bytes, tuple[bytes, ...]]:
    """Return the pipelines by field. A mongod has validated the stage."""
    return {name: tuple(array_documents(stage.raw, span)) for name, span in index(stage.raw, stage.span[2]).items()}


_OF_ONE_VALUE: Final = frozenset(
    {
        *(b"$addToSet", b"$avg", b"$first", b"$last", b"$max", b"$mergeObjects", b"$min", b"$push"),
        *(b"$stdDevPop", b"$stdDevSamp", b"$sum"),
    }
)
"""Accumulators whose operand is an expression."""

_ONE_FOR_ALL: Final = (b"$$NOW", b"$$CLUSTER_TIME")
"""Variables that would have other values in another command."""

_GROUP: Final = b"g"
_OPERANDS: Final = b"a"


def narrowed(stage: PipelineStage) -> tuple[bytes, PipelineStage] | None:
    """Split a ``$group`` into a ``$replaceWith`` that evaluates its expressions, and a ``$group`` of their values.

    Args:
        stage: a valid ``$group``.

    Returns:
        None if the stage cannot be split.
    """
    kind, _, start, end = stage.span
    if kind != OBJECT or any(variable in stage.raw for variable in _ONE_FOR_ALL):
        return None
    specification = stage.raw[start:end]
    evaluated: list[bytes] = []
    grouping: list[bytes] = []
    for number, (name, span) in enumerate(spans(specification)):
        if name == b"_id":
            evaluated.append(element(_GROUP, span[0], specification[span[2] : span[3]]))
            grouping.append(_group(specification, span))
            continue
        accumulator = _operator(specification, span)
        if accumulator is None:
            return None
        operator, kind, operand = accumulator
        if kind in (STRING, OBJECT) and operator in _OF_ONE_VALUE:
            evaluated.append(element(b"%s%d" % (_OPERANDS, number), kind, operand))
            kind, operand = STRING, string_value(b"$%s%d" % (_OPERANDS, number))
        grouping.append(element(name, OBJECT, from_elements(element(operator, kind, operand))))
    values = element(b"$replaceWith", OBJECT, from_elements(b"".join(evaluated)))
    group = element(b"$group", OBJECT, from_elements(b"".join(grouping)))
    return from_elements(values), PipelineStage.parse(from_elements(group))


def _group(specification: bytes, span: Span) -> bytes:
    """Return the ``_id`` for groups of evaluated values, field by field, so that a missing field can become null."""
    if span[0] == OBJECT:
        fields = index(specification[span[2] : span[3]])
        if not any(name.startswith(b"$") for name in fields):
            paths = (element(name, STRING, string_value(b"$%s.%s" % (_GROUP, name))) for name in fields)
            return element(b"_id", OBJECT, from_elements(b"".join(paths)))
    return element(b"_id", STRING, string_value(b"$" + _GROUP))


def _operator(specification: bytes, span: Span) -> tuple[bytes, int, bytes] | None:
    """Return an accumulator's operator with its raw operand; None for one that cannot be split."""
    if span[0] != OBJECT:
        return None
    operators = list(spans(specification[span[2] : span[3]]))
    if len(operators) != 1:
        return None
    name, (kind, _, start, end) = operators[0]
    if name != b"$count" and (name not in _OF_ONE_VALUE or kind == ARRAY):
        return None
    return name, kind, specification[span[2] : span[3]][start:end]


@dataclass(frozen=True, slots=True)
class UnionWith:
    """The arguments of a ``$unionWith``.

    Attributes:
        collection: the other collection; None if the pipeline begins with ``$documents``, even if ``coll`` is given.
    """

    collection: str | None
    stages: tuple[bytes, ...] = ()

    @classmethod
    def parse(cls, stage: PipelineStage) -> "UnionWith":
        """Parse the stage, which must be valid."""
        if stage.span[0] == STRING:
            return cls(str(stage.specification))
        fields = index(stage.raw, stage.span[2])
        collection, pipeline = fields.get(b"coll"), fields.get(b"pipeline")
        stages = () if pipeline is None else tuple(array_documents(stage.raw, pipeline))
        if collection is None or begins_with_documents(stages):
            return cls(None, stages)
        return cls(string_at(stage.raw, collection), stages)


_SINGLE_DOCUMENT: Final = frozenset(
    {
        *("$project", "$addFields", "$set", "$unset", "$replaceRoot", "$replaceWith"),
        *("$match", "$redact", "$unwind"),
    }
)
_EXTENDING: Final = frozenset({"$lookup", "$graphLookup"})


async def run_stages(environment: JoinEnvironment, source: Stage, stages: Sequence[PipelineStage | bytes]) -> Stage:
    """Run a pipeline whose input is another stage; return the stage of its results.

    Args:
        source: the input, which is closed if the pipeline is refused.
        stages: the stages, without ``$out`` and ``$merge``; raw stages are parsed.

    Raises:
        CommandError: a stage is wrong; OperationNotSupportedInTransaction, a ``$unionWith`` is part of a transaction.
    """
    with environment.operation.context.cursors.closing_on_error(source):
        return _run_stages(environment, source, stages)


def _run_stages(environment: JoinEnvironment, source: Stage, stages: Sequence[PipelineStage | bytes]) -> Stage:
    rest = [PipelineStage.parse(each) if isinstance(each, bytes) else each for each in stages]
    stream = source
    while rest:
        if _names_others(rest[0], environment.db):
            stage = rest.pop(0)
            tail = _take_tail(rest, environment.db) if stage.name in _EXTENDING else []
            stream = _joined(environment, stream, stage, tail)
        elif rest[0].name in _SINGLE_DOCUMENT:
            stream = mapped_stage(environment, stream, _take_single_document(rest, environment.db))
        else:
            stream = ComputedStage(environment, stream, _take_others(rest, environment.db))
    return stream


def _joined(environment: JoinEnvironment, source: Stage, stage: PipelineStage, tail: Sequence[bytes]) -> Stage:
    if stage.name == "$lookup":
        lookup = LookupStep(environment, Lookup.parse(_raw(stage)), tail, run_stages)
        return BatchedStage(environment, source, lookup, lookup.run_alone)
    if stage.name == "$graphLookup":
        graph = GraphStep(environment, GraphLookup.parse(_raw(stage)), tail)
        return BatchedStage(environment, source, graph, graph.run_alone)
    if stage.name == "$facet":
        return FacetStage(environment, source, stage, run_stages)
    if stage.name == "$unionWith":
        if environment.operation.transaction is not None:
            raise CommandError(
                ErrorCode.OperationNotSupportedInTransaction,
                f"Stage not supported inside of a multi-document transaction: {stage.name}",
            )
        union = UnionWith.parse(stage)
        collection = COLLECTIONLESS if union.collection is None else union.collection
        return UnionStage(source, lambda: environment.read(collection, union.stages))
    raise AssertionError(f"{stage.name} names no collections")


def _raw(stage: PipelineStage) -> bytes:
    """Return the specification of a stage, a document."""
    _, _, start, end = stage.span
    return stage.raw[start:end]


def _names_others(stage: PipelineStage, db: str) -> bool:
    return bool(Pipeline((stage,)).involved_namespaces(db))


def _take_single_document(rest: list[PipelineStage], db: str) -> list[bytes]:
    taken: list[bytes] = []
    while rest and rest[0].name in _SINGLE_DOCUMENT and not _names_others(rest[0], db):
        taken.append(rest.pop(0).raw)
    return taken


def _take_tail(rest: list[PipelineStage], db: str) -> list[bytes]:
    """Take the stages that the joining mongod applies to the documents before it returns them."""
    taken = _take_single_document(rest, db)
    parts = narrowed(rest[0]) if rest and rest[0].name == "$group" else None
    if parts is not None:
        values, rest[0] = parts
        taken.append(values)
    return taken


def _take_others(rest: list[PipelineStage], db: str) -> list[bytes]:
    taken = [rest.pop(0).raw]
    while rest and not _names_others(rest[0], db):
        taken.append(rest.pop(0).raw)
    return taken
