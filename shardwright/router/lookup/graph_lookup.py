"""``$graphLookup`` of a collection elsewhere: a breadth-first search by the router, with one read per step.

The equality of a step is a ``$in``, as in MongoDB, so that the shards compare by MongoDB's rules. A `Frontier` holds
the values from which the next step starts. A mongod has validated the arguments before
(`operations.checked_pipeline`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import bson

from shardwright.router.exec.stage import ListStage, Stage
from shardwright.router.lookup.environment import JoinEnvironment, read_each
from shardwright.router.lookup.lookup import LetVariables, string_at
from shardwright.router.lookup.mongod_stages import BatchedStage, MappingStep, joined_alone
from shardwright.router.lookup.pipeline_input import (
    BATCH_MATCHES_BYTES_MAX,
    MEMORY_BYTES_MAX,
    Handed,
    Room,
    TooLargeError,
    check_handed,
    joining_pipelines,
    raw_stage,
    stage,
)
from shardwright.sharding.key_order import encode_value
from shardwright.wire.arguments import clamp_int64
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import (
    ARRAY,
    BOOL,
    OBJECT,
    UNDEFINED,
    Span,
    array_of_documents,
    decode_value,
    element,
    encode_elements,
    find,
    from_elements,
    index,
    spans,
)


@dataclass(frozen=True, slots=True)
class GraphLookup:
    """The arguments of a ``$graphLookup``.

    Attributes:
        start: type and raw value of ``startWith``.
        connect_from: ``connectFromField``, the path of values that lead to further documents.
        connect_to: ``connectToField``, the path that these values are looked up in.
        into: ``as``.
        depth_max: the maximum number of steps, None for no limit.
        depth_field: path of the field for the number of steps, None for none.
        restriction: a raw filter for all found documents.
    """

    collection: str
    start: tuple[int, bytes]
    connect_from: str
    connect_to: str
    into: str
    depth_max: int | None
    depth_field: str | None
    restriction: bytes | None

    @classmethod
    def parse(cls, specification: bytes) -> "GraphLookup":
        """Parse the raw specification of the stage, which must be valid."""
        fields = index(specification)
        kind, _, start, end = fields[b"startWith"]
        restriction, depth_field = fields.get(b"restrictSearchWithMatch"), fields.get(b"depthField")
        depth_max = fields.get(b"maxDepth")
        return cls(
            string_at(specification, fields[b"from"]),
            (kind, specification[start:end]),
            string_at(specification, fields[b"connectFromField"]),
            string_at(specification, fields[b"connectToField"]),
            string_at(specification, fields[b"as"]),
            None if depth_max is None else clamp_int64(decode_value(specification, depth_max)),
            None if depth_field is None else string_at(specification, depth_field),
            None if restriction is None else specification[restriction[2] : restriction[3]],
        )


class Frontier:
    """Distinct values, as type and raw bytes. As in MongoDB, arrays add their elements, missing fields nothing."""

    def __init__(self) -> None:
        self._values: dict[tuple[int, bytes], None] = {}

    def __bool__(self) -> bool:
        return bool(self._values)

    def add_start(self, document: bytes, span: Span | None) -> None:
        """Add the start value of the search, or its elements."""
        if span is not None:
            self._add(document, span)

    def add(self, document: bytes, path: Sequence[bytes], start: int = 0) -> None:
        """Add the values at a path of a document.

        Args:
            path: the names, at least one.
            start: the offset of the object or array in ``document`` that the path starts at.
        """
        span = find(document, path[0], start)
        if span is None:
            return
        if len(path) == 1:
            self._add(document, span)
        elif span[0] == OBJECT:
            self.add(document, path[1:], span[2])
        elif span[0] == ARRAY:
            if path[1].isdigit():
                self.add(document, path[1:], span[2])
            for _, each in spans(document, span[2]):
                if each[0] == OBJECT:
                    self.add(document, path[1:], each[2])

    def filter(self, field: bytes) -> bytes:
        """Return a raw filter for documents with one of the values in a field; a missing field is not null here."""
        parts = [element(b"%d" % position, *value) for position, value in enumerate(self._values)]
        values = from_elements(b"".join(parts))
        exists = element(b"$exists", BOOL, b"\1")
        return from_elements(element(field, OBJECT, from_elements(element(b"$in", ARRAY, values) + exists)))

    def _add(self, document: bytes, span: Span) -> None:
        found = [each for _, each in spans(document, span[2])] if span[0] == ARRAY else [span]
        for kind, _, start, end in found:
            if kind != UNDEFINED:
                self._values[kind, document[start:end]] = None


_START: Final = b"start"
_TOO_MUCH: Final = 40099
_NO_ID: Final = 40271


class GraphStep:
    """A `mongod_stages.Step` for ``$graphLookup``."""

    def __init__(self, environment: JoinEnvironment, graph: GraphLookup, tail: Sequence[bytes]) -> None:
        """Prepare the step.

        Args:
            tail: raw stages on single documents that follow.
        """
        self._environment = environment
        self._graph = graph
        self._tail = tuple(tail)
        self._start = LetVariables(environment, {_START: graph.start})

    async def pipelines(self, documents: Sequence[bytes]) -> Iterator[list[bytes]]:
        """See `mongod_stages.Step`."""
        starts = await self._start.of(documents)
        different = dict.fromkeys(starts)
        if len(different) == 1:
            found = {start: await self._search_alone(start) for start in different}
        else:
            room = Room(BATCH_MATCHES_BYTES_MAX)
            found = await read_each(different, partial(self._search, room=room))
        handed = [Handed(document, found[start]) for document, start in zip(documents, starts, strict=True)]
        check_handed(handed)
        return joining_pipelines(handed, self._graph.into, self._tail, stages=self._unwrapping())

    async def run_alone(self, document: bytes) -> Stage:
        """See `mongod_stages.RunAlone`."""
        [start] = await self._start.of([document])
        found = ListStage(await self._search_alone(start))
        results = BatchedStage(self._environment, found, MappingStep(self._unwrapping()))
        return joined_alone(self._environment, document, results, self._graph.into, self._tail)

    def _unwrapping(self) -> list[bytes]:
        """Return the raw stages that convert search results to the joined documents."""
        stages = [stage("$replaceWith", "$d")]
        if self._graph.depth_field is not None:
            stages.insert(0, stage("$set", {f"d.{self._graph.depth_field}": "$n"}))
        return stages

    async def _search_alone(self, start: bytes) -> list[bytes]:
        """Do the same as `_search`, with all memory that MongoDB allows for a search."""
        try:
            return await self._search(start, Room(MEMORY_BYTES_MAX))
        except TooLargeError:
            raise CommandError(_TOO_MUCH, "$graphLookup reached maximum memory consumption") from None

    async def _search(self, start: bytes, room: Room) -> list[bytes]:
        """Search from one start; return the documents, each as ``{d: document, n: steps}``.

        Raises:
            TooLargeError: they are too large.
        """
        frontier = Frontier()
        frontier.add_start(start, find(start, _START))
        path = self._graph.connect_from.encode().split(b".")
        found: dict[bytes, bytes] = {}
        depth = 0
        while frontier and (self._graph.depth_max is None or depth <= self._graph.depth_max):
            reached, frontier = await self._step(frontier, Room(room.bytes_left)), Frontier()
            steps = encode_elements({"n": bson.Int64(depth)})
            for document in reached:
                key = _id_key(document)
                if key not in found:
                    found[key] = from_elements(element(b"d", OBJECT, document) + steps)
                    frontier.add(document, path)
                    room.take([document])
            depth += 1
        return list(found.values())

    async def _step(self, frontier: Frontier, room: Room) -> list[bytes]:
        """Read the documents that the values of a frontier lead to."""
        query = frontier.filter(self._graph.connect_to.encode())
        if self._graph.restriction is not None:
            query = from_elements(element(b"$and", ARRAY, array_of_documents([self._graph.restriction, query])))
        stream = await self._environment.read(self._graph.collection, [raw_stage(b"$match", query)])
        return await self._environment.collect(stream, room)


def _id_key(document: bytes) -> bytes:
    """Encode the ``_id`` of a document so that equal ``_id`` values have the same bytes."""
    span = find(document, b"_id")
    if span is None:
        raise CommandError(
            _NO_ID, "Documents in the 'from' namespace must contain an _id for de-duplication in $graphLookup"
        )
    return encode_value(document, span)
