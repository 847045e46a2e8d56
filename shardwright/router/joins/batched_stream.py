"""Stages on single documents: a stream's documents go through a mongod in batches."""

from collections.abc import Iterator, Sequence
from typing import Protocol

from shardwright.router.cursors.remote import RemoteCursor
from shardwright.router.joins.environment import JoinEnvironment
from shardwright.router.joins.stage_building import BATCH_BYTES, BATCH_DOCUMENTS, chunks, documents_stage
from shardwright.router.joins.streams import DocumentStream, remotes_of


class Step(Protocol):
    """What is done with a batch."""

    async def pipelines(self, documents: Sequence[bytes]) -> Iterator[list[bytes]]:
        """The pipelines, of raw stages, whose results together are the batch's; for an empty batch at least one.

        Raises:
            CommandError: what they need could not be read.
        """


class MappingStep:
    """Stages that work on single documents."""

    def __init__(self, stages: Sequence[bytes]) -> None:
        self._stages = stages

    async def pipelines(self, documents: Sequence[bytes]) -> Iterator[list[bytes]]:
        """See `Step`."""
        return ([documents_stage(chunk), *self._stages] for chunk in chunks(documents))


class BatchedStream:
    """See `streams.DocumentStream`."""

    def __init__(self, environment: JoinEnvironment, source: DocumentStream, step: Step) -> None:
        self._environment = environment
        self._source = source
        self._step = step
        self._input: list[bytes] = []
        self._pipelines: Iterator[list[bytes]] = iter(())
        self._results: DocumentStream | None = None
        self._is_checked = False

    @property
    def remotes(self) -> Sequence[RemoteCursor]:
        """See `streams.DocumentStream`."""
        return remotes_of(self._source, self._results)

    async def next_batch(self) -> list[bytes]:
        """See `streams.DocumentStream`."""
        await self._check()
        while True:
            if self._results is not None:
                documents = await self._results.next_batch()
                if documents:
                    return documents
                self._results = None
            stages = next(self._pipelines, None)
            if stages is not None:
                self._results = await self._environment.compute(stages)
                continue
            batch = await self._next_input()
            if not batch:
                return []
            self._pipelines = await self._step.pipelines(batch)

    async def _check(self) -> None:
        """Have a mongod check the stages before anything is read for them.

        Raises:
            CommandError: they are wrong.
        """
        if not self._is_checked:
            self._is_checked = True
            for stages in await self._step.pipelines(()):
                await self._environment.collect(await self._environment.compute(stages), BATCH_BYTES)

    async def _next_input(self) -> list[bytes]:
        if not self._input:
            self._input = await self._source.next_batch()
        size = 0
        for number, document in enumerate(self._input):
            size += len(document)
            if number and (size > BATCH_BYTES or number >= BATCH_DOCUMENTS):
                batch, self._input = self._input[:number], self._input[number:]
                return batch
        batch, self._input = self._input, []
        return batch
