"""``$graphLookup`` of a collection elsewhere: the router searches breadth first, one read of the collection per step.

The equality of a step is a ``$in``, as in MongoDB, so the shards compare with MongoDB's meaning.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

import bson

from shardwright.router.joins.alone import joined_alone
from shardwright.router.joins.batched_stream import BatchedStream, MappingStep
from shardwright.router.joins.concurrent_reads import read_each
from shardwright.router.joins.environment import JoinEnvironment
from shardwright.router.joins.frontier import Frontier
from shardwright.router.joins.graph_lookup import GraphLookup
from shardwright.router.joins.handed_documents import Handed, joining_pipelines
from shardwright.router.joins.memory import (
    BATCH_MATCHES_BYTES_MAX,
    MEMORY_BYTES_MAX,
    Room,
    TooLargeError,
    check_handed,
)
from shardwright.router.joins.stage_building import raw_stage, stage
from shardwright.router.joins.streams import DocumentStream, ListStream
from shardwright.router.joins.variables import LetVariables
from shardwright.sharding.key_order import encode_value
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import ARRAY, OBJECT, array_of_documents, element, encode_elements, find, from_elements

_START: Final = b"start"
_TOO_MUCH: Final = 40099
_NO_ID: Final = 40271


class GraphStep:
    """See `batched_stream.Step`."""

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
        """See `batched_stream.Step`."""
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
        """See `batched_stream.RunAlone`."""
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
