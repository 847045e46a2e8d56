"""The documents of a stream, each wrapped in another document."""

from collections.abc import Callable, Sequence

from shardwright.router.cursors.remote import RemoteCursor
from shardwright.router.joins.streams import DocumentStream
from shardwright.wire.errors import CommandError


class RowStream:
    """See `streams.DocumentStream`."""

    def __init__(
        self,
        documents: DocumentStream,
        row: Callable[[bytes, int], bytes],
        *,
        if_none: bytes | None = None,
        bytes_max: int | None = None,
        excess: CommandError | None = None,
    ) -> None:
        """Prepare it.

        Args:
            documents: what is wrapped.
            row: makes a row of a document and its number.
            if_none: the only row if there are no documents; None for no row.
            bytes_max: how large the documents may be together, None for no limit.
            excess: the error if they are larger.
        """
        self._documents = documents
        self._row = row
        self._if_none = if_none
        self._bytes_left = bytes_max
        self._excess = excess
        self._count = 0

    @property
    def remotes(self) -> Sequence[RemoteCursor]:
        """See `streams.DocumentStream`."""
        return self._documents.remotes

    async def next_batch(self) -> list[bytes]:
        """See `streams.DocumentStream`."""
        batch = await self._documents.next_batch()
        if not batch and not self._count and self._if_none is not None:
            self._count = 1
            return [self._if_none]
        rows = [self._row(document, number) for number, document in enumerate(batch, self._count)]
        self._count += len(rows)
        if self._bytes_left is not None:
            self._bytes_left -= sum(map(len, batch))
            if self._bytes_left < 0:
                assert self._excess is not None
                raise self._excess
        return rows
