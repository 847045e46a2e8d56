"""``$graphLookup`` of a collection elsewhere: the router searches breadth first, one read of the collection per step.

The equality of a step is a ``$in``, as in MongoDB, so the shards compare with MongoDB's meaning. A `Frontier` holds
the values from which the next step starts. A mongod has checked the arguments before
(`operations.checked_pipeline`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import bson

from shardwright.router.lookup.environment import JoinEnvironment, read_each
from shardwright.router.lookup.lookup import LetVariables, string_at
from shardwright.router.lookup.mongod_stages import BatchedStream, MappingStep, joined_alone
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
from shardwright.router.lookup.streams import DocumentStream, ListStream
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
    """What a ``$graphLookup`` is to do.

    Attributes:
        collection: the collection that is searched.
        start: type and raw value of the expression that the search starts with.
        connect_from: path of the values that lead to further documents.
        connect_to: path of the values that they lead to.
        into: path of the field for the result.
        depth_max: how many steps to go at most, None for no limit.
        depth_field: path of the field for the number of steps, None for none.
        restriction: a raw filter for all documents found.
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
        """Read the raw specification of the stage, which is right."""
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
    """Different values, as type and raw bytes: of arrays their elements, of missing fields nothing, as in MongoDB."""

    def __init__(self) -> None:
        self._values: dict[tuple[int, bytes], None] = {}

    def __bool__(self) -> bool:
        return bool(self._values)

    def add_start(self, document: bytes, span: Span | None) -> None:
        """Add the value that the search starts with, or its elements.

        Args:
            document: where the value is.
            span: the value, None if there is none.
        """
        if span is not None:
            self._add(document, span)

    def add(self, document: bytes, path: Sequence[bytes], start: int = 0) -> None:
        """Add the values at a path of a document.

        Args:
            document: the document.
            path: the names, at least one.
            start: where in ``document`` the object or array begins that the path starts at.
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
        """A raw filter for documents with one of the values in a field; a missing field is not null here."""
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
    """See `mongod_stages.Step`."""

    def __init__(self, environment: JoinEnvironment, graph: GraphLookup, tail: Sequence[bytes]) -> None:
        """Prepare it.

        Args:
            environment: of the aggregation.
            graph: what to do.
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

    async def run_alone(self, document: bytes) -> DocumentStream:
        """See `mongod_stages.RunAlone`."""
        [start] = await self._start.of([document])
        found = ListStream(await self._search_alone(start))
        results = BatchedStream(self._environment, found, MappingStep(self._unwrapping()))
        return joined_alone(self._environment, document, results, self._graph.into, self._tail)

    def _unwrapping(self) -> list[bytes]:
        """The raw stages that make the joined documents of what was found."""
        stages = [stage("$replaceWith", "$d")]
        if self._graph.depth_field is not None:
            stages.insert(0, stage("$set", {f"d.{self._graph.depth_field}": "$n"}))
        return stages

    async def _search_alone(self, start: bytes) -> list[bytes]:
        """As `_search`, with all memory that MongoDB allows a search.

        Raises:
            CommandError: a read failed; 40099, it needs too much memory; 40271.
        """
        try:
            return await self._search(start, Room(MEMORY_BYTES_MAX))
        except TooLargeError:
            raise CommandError(_TOO_MUCH, "$graphLookup reached maximum memory consumption") from None

    async def _search(self, start: bytes, room: Room) -> list[bytes]:
        """The documents found from one start, each as ``{d: document, n: steps}``.

        Raises:
            TooLargeError: they are too large.
            CommandError: a read failed; 40271, a document has no ``_id``.
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
        """The documents that the values of a frontier lead to."""
        query = frontier.filter(self._graph.connect_to.encode())
        if self._graph.restriction is not None:
            query = from_elements(element(b"$and", ARRAY, array_of_documents([self._graph.restriction, query])))
        stream = await self._environment.read(self._graph.collection, [raw_stage(b"$match", query)])
        return await self._environment.collect(stream, room)


def _id_key(document: bytes) -> bytes:
    """Bytes that are the same for equal ``_id``s.

    Raises:
        CommandError: 40271, it has none.
    """
    span = find(document, b"_id")
    if span is None:
        raise CommandError(
            _NO_ID, "Documents in the 'from' namespace must contain an _id for de-duplication in $graphLookup"
        )
    return encode_value(document, span)
