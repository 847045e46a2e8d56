"""``$facet`` with stages that join collections elsewhere: each of its pipelines gets all documents."""

from collections.abc import Mapping, Sequence

import trio

from shardwright.router.cursors.remote import RemoteCursor
from shardwright.router.joins.environment import JoinEnvironment, StageRunner
from shardwright.router.joins.memory import Room, TooLargeError
from shardwright.router.joins.streams import DocumentStream
from shardwright.router.joins.tee import Tee, TeeReader
from shardwright.router.reads.pipeline import Stage
from shardwright.wire.document_size import check_size
from shardwright.wire.errors import CommandError
from shardwright.wire.limits import BSON_OBJECT_INTERNAL_BYTES_MAX
from shardwright.wire.rawbson import (
    ARRAY,
    array_documents,
    array_of_documents,
    element,
    from_elements,
    index,
)


class FacetStream:
    """See `streams.DocumentStream`; it has one document."""

    def __init__(
        self, environment: JoinEnvironment, source: DocumentStream, stage: Stage, run_stages: StageRunner
    ) -> None:
        """Prepare it.

        Args:
            environment: of the aggregation.
            source: the documents.
            stage: the ``$facet``.
            run_stages: runs a pipeline on the documents.
        """
        self._environment = environment
        self._source = source
        self._run_stages = run_stages
        self._facets: dict[bytes, tuple[bytes, ...]] | None = _parse(stage)

    @property
    def remotes(self) -> Sequence[RemoteCursor]:
        """See `streams.DocumentStream`."""
        return self._source.remotes

    async def next_batch(self) -> list[bytes]:
        """See `streams.DocumentStream`."""
        if self._facets is None:
            return []
        facets, self._facets = self._facets, None
        results = await self._results(facets)
        return [from_elements(b"".join(element(name, ARRAY, array_of_documents(results[name])) for name in facets))]

    async def _results(self, facets: Mapping[bytes, Sequence[bytes]]) -> dict[bytes, list[bytes]]:
        """The results of all pipelines, which run at the same time.

        Raises:
            CommandError: one failed; BSONObjectTooLarge, they do not fit into a document.
        """
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
                await tee.pump()
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


def _parse(stage: Stage) -> dict[bytes, tuple[bytes, ...]]:
    """The pipelines by field; a mongod has checked the stage."""
    return {name: tuple(array_documents(stage.raw, span)) for name, span in index(stage.raw, stage.span[2]).items()}
