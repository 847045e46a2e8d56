"""Stages on single documents: a stream's documents go through a mongod in batches."""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Protocol, TypeAlias

from shardwright.router.cursors.remote import RemoteCursor
from shardwright.router.joins.environment import JoinEnvironment
from shardwright.router.joins.memory import Room, TooLargeError
from shardwright.router.joins.stage_building import BATCH_BYTES, BATCH_DOCUMENTS, chunks, documents_stage
from shardwright.router.joins.streams import DocumentStream, remotes_of


class Step(Protocol):
    """What is done with a batch."""

    async def pipelines(self, documents: Sequence[bytes]) -> Iterator[list[bytes]]:
        """The pipelines, of raw stages, whose results together are the batch's; for an empty batch, those that a
        mongod checks before anything is read.

        Raises:
            TooLargeError: they need more than may be held for a batch.
            CommandError: what they need could not be read.
        """


RunAlone: TypeAlias = Callable[[bytes], Awaitable[DocumentStream]]
"""The results for a single document that is too large for a batch of its own."""


class MappingStep:
    """Stages that work on single documents.

    Args:
        stages: raw.
        bytes_max: how large documents may be for one command; None if any of them fits into one.
    """

    def __init__(self, stages: Sequence[bytes], *, bytes_max: int | None = None) -> None:
        self._stages = stages
        self._bytes_max = bytes_max

    async def pipelines(self, documents: Sequence[bytes]) -> Iterator[list[bytes]]:
        """See `Step`."""
        if self._bytes_max is not None and sum(map(len, documents)) > self._bytes_max:
            raise TooLargeError(self._bytes_max)
        return ([documents_stage(chunk), *self._stages] for chunk in chunks(documents))


class BatchedStream:
    """See `streams.DocumentStream`."""

    def __init__(
        self,
        environment: JoinEnvironment,
        source: DocumentStream,
        step: Step,
        run_alone: RunAlone | None = None,
        *,
        bytes_max: int = BATCH_BYTES,
    ) -> None:
        """Prepare it.

        Args:
            environment: of the aggregation.
            source: the documents.
            step: what is done with them.
            run_alone: see there; None if the step never needs too much.
            bytes_max: the size of a batch, unless a single document is larger.
        """
        self._environment = environment
        self._source = source
        self._step = step
        self._run_alone = run_alone
        self._bytes_max = bytes_max
        self._documents_max = BATCH_DOCUMENTS
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
            await self._begin(batch)

    async def _begin(self, batch: list[bytes]) -> None:
        """Begin with a batch; put it back, and make smaller ones from now on, if it needs too much.

        Raises:
            CommandError: what it needs could not be read.
        """
        try:
            self._pipelines = await self._step.pipelines(batch)
            self._documents_max = min(2 * self._documents_max, BATCH_DOCUMENTS)
        except TooLargeError:
            if len(batch) > 1:
                self._documents_max = len(batch) // 2
                self._input = [*batch, *self._input]
                return
            if self._run_alone is None:
                raise
            self._results = await self._run_alone(batch[0])

    async def _check(self) -> None:
        """Have a mongod check the stages before anything is read for them.

        Raises:
            CommandError: they are wrong.
        """
        if not self._is_checked:
            self._is_checked = True
            for stages in await self._step.pipelines(()):
                await self._environment.collect(await self._environment.compute(stages), Room(BATCH_BYTES))

    async def _next_input(self) -> list[bytes]:
        if not self._input:
            self._input = await self._source.next_batch()
        size = 0
        for number, document in enumerate(self._input):
            size += len(document)
            if number and (size > self._bytes_max or number >= self._documents_max):
                batch, self._input = self._input[:number], self._input[number:]
                return batch
        batch, self._input = self._input, []
        return batch
