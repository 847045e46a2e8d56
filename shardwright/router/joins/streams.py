"""Streams of raw documents: what one part of a pipeline hands to the next."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import chain
from typing import Final, Protocol

from shardwright.router.cursors.remote import RemoteCursor


class DocumentStream(Protocol):
    """Documents that are fetched as they are needed."""

    @property
    def remotes(self) -> Sequence[RemoteCursor]:
        """The cursors on shards that are open for it, to be killed when it is not read to its end."""

    async def next_batch(self) -> list[bytes]:
        """The next documents; an empty list at the end.

        Raises:
            CommandError: they could not be read; the stream ends.
        """


class ListStream:
    """Documents that are here already."""

    remotes: Final = ()

    def __init__(self, documents: Iterable[bytes]) -> None:
        self._documents = list(documents)

    async def next_batch(self) -> list[bytes]:
        """See `DocumentStream`."""
        documents, self._documents = self._documents, []
        return documents


class ConcatenatedStream:
    """The documents of a stream, then those of another one, which is opened when the first has ended."""

    def __init__(self, first: DocumentStream, open_second: Callable[[], Awaitable[DocumentStream]]) -> None:
        self._current = first
        self._open_second: Callable[[], Awaitable[DocumentStream]] | None = open_second

    @property
    def remotes(self) -> Sequence[RemoteCursor]:
        """See `DocumentStream`."""
        return self._current.remotes

    async def next_batch(self) -> list[bytes]:
        """See `DocumentStream`."""
        documents = await self._current.next_batch()
        if not documents and self._open_second is not None:
            open_second, self._open_second = self._open_second, None
            self._current = await open_second()
            documents = await self._current.next_batch()
        return documents


class PrefetchedStream:
    """Documents that were read from a stream already, then its others."""

    def __init__(self, documents: list[bytes], rest: DocumentStream) -> None:
        self._documents = documents
        self._rest = rest

    @property
    def remotes(self) -> Sequence[RemoteCursor]:
        """See `DocumentStream`."""
        return self._rest.remotes

    async def next_batch(self) -> list[bytes]:
        """See `DocumentStream`."""
        documents, self._documents = self._documents, []
        return documents or await self._rest.next_batch()


def remotes_of(*streams: DocumentStream | None) -> tuple[RemoteCursor, ...]:
    """The cursors on shards of several streams."""
    return tuple(chain.from_iterable(stream.remotes for stream in streams if stream is not None))
