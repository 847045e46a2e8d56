"""``$facet`` with stages that join collections elsewhere: each of its pipelines gets all documents."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeAlias

from shardwright.router.cursors.remote import RemoteCursor
from shardwright.router.joins.environment import MEMORY_BYTES_MAX, JoinEnvironment, check_size
from shardwright.router.joins.lookup import check_writes_nothing
from shardwright.router.joins.streams import DocumentStream, ListStream
from shardwright.router.reads.pipeline import Stage
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import (
    ARRAY,
    OBJECT,
    array_documents,
    array_of_documents,
    element,
    from_elements,
    index,
)

StageRunner: TypeAlias = Callable[[JoinEnvironment, DocumentStream, Sequence[bytes]], Awaitable[DocumentStream]]
"""Runs raw stages on a stream."""

_NOT_AN_OBJECT: Final = 40169
_NOT_AN_ARRAY: Final = 40170
_NOT_IN_FACET: Final = 40600


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

        Raises:
            CommandError: its arguments are wrong.
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
        documents = await self._environment.collect(self._source, MEMORY_BYTES_MAX)
        elements = b""
        for name, stages in facets.items():
            stream = await self._run_stages(self._environment, ListStream(documents), stages)
            results = await self._environment.collect(stream, MEMORY_BYTES_MAX)
            elements += element(name, ARRAY, array_of_documents(results))
            check_size(len(elements))
        return [from_elements(elements)]


def _parse(stage: Stage) -> dict[bytes, tuple[bytes, ...]]:
    if stage.span[0] != OBJECT:
        raise CommandError(_NOT_AN_OBJECT, "the $facet specification must be a non-empty object")
    facets = {}
    for name, span in index(stage.raw, stage.span[2]).items():
        if span[0] != ARRAY:
            raise CommandError(_NOT_AN_ARRAY, f"arguments to $facet must be arrays, {name.decode()} is not")
        facets[name] = tuple(array_documents(stage.raw, span))
        check_writes_nothing(facets[name], "a $facet stage", _NOT_IN_FACET)
    return facets
