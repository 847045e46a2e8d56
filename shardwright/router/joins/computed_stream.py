"""Stages that need all documents of a stream at once: they run on a mongod."""

from collections.abc import Sequence
from typing import Final

from shardwright.router.cursors.remote import RemoteCursor
from shardwright.router.joins.environment import JoinEnvironment
from shardwright.router.joins.handed_stream import HANDED_BYTES_MAX, hand_over
from shardwright.router.joins.stage_building import COMMAND_BYTES_MAX
from shardwright.router.joins.streams import DocumentStream, remotes_of
from shardwright.wire.rawbson import encode_elements

_FROM_ROUTER: Final = encode_elements({"fromMongos": True})


class ComputedStream:
    """See `streams.DocumentStream`."""

    def __init__(self, environment: JoinEnvironment, source: DocumentStream, stages: Sequence[bytes]) -> None:
        """Prepare it.

        Args:
            environment: of the aggregation.
            source: the documents.
            stages: raw.
        """
        self._environment = environment
        self._source = source
        self._stages = stages
        self._results: DocumentStream | None = None

    @property
    def remotes(self) -> Sequence[RemoteCursor]:
        """See `streams.DocumentStream`."""
        return remotes_of(self._source, self._results)

    async def next_batch(self) -> list[bytes]:
        """See `streams.DocumentStream`."""
        if self._results is None:
            self._results = await self._open()
        return await self._results.next_batch()

    async def _open(self) -> DocumentStream:
        room = COMMAND_BYTES_MAX - self._environment.command_bytes(self._stages)
        bytes_max = HANDED_BYTES_MAX if room > 2 * HANDED_BYTES_MAX else 0
        handed = await hand_over(self._environment, self._source, bytes_max)
        is_open = False
        try:
            elements = _FROM_ROUTER if handed.is_read_here else b""
            results = await self._environment.compute([handed.stage, *self._stages], elements=elements)
            is_open = True
            return results
        finally:
            if not is_open:
                handed.discard()
