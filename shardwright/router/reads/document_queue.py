"""Documents that wait to be returned, taken in order and many at a time.

A batch is not taken apart before its documents are needed: a sorted find with a limit uses about half of those that
each of two shards returns.
"""

from collections.abc import Sequence
from typing import Final

from shardwright.wire.errors import RemoteProtocolError
from shardwright.wire.rawbson import DocumentArray, InvalidBSONError

_OBJECT_BYTES: Final = 48
"""Memory overhead of a document."""


def held_bytes(documents: Sequence[bytes]) -> int:
    """Memory used by documents."""
    return sum(map(len, documents)) + len(documents) * _OBJECT_BYTES


class DocumentQueue:
    """Documents in their order."""

    __slots__ = ("_documents", "_position", "_rest")

    def __init__(self) -> None:
        self._documents: Sequence[bytes] = ()
        self._position = 0
        self._rest: DocumentArray | None = None

    def __bool__(self) -> bool:
        """Whether there are any."""
        return self._position < len(self._documents) or self._rest is not None

    @property
    def held_bytes(self) -> int:
        """Memory used by them, and by those taken whose memory is not free yet."""
        return held_bytes(self._documents) + (0 if self._rest is None else self._rest.held_bytes)

    def put(self, documents: Sequence[bytes]) -> None:
        """Put documents into the queue, which has to be empty."""
        assert not self
        self._documents, self._position = documents, 0

    def put_array(self, documents: DocumentArray) -> None:
        """As `put`, for a batch as it was received; if it is malformed, that is found when it is read."""
        self.put(())
        self._rest = documents or None

    def peek(self, count: int) -> Sequence[bytes]:
        """The first documents, as many as there are up to this number.

        Raises:
            RemoteProtocolError: a batch is malformed.
        """
        end = self._position + count
        if self._rest is not None and end > len(self._documents):
            self._read(self._rest, end - len(self._documents))
            end = count
        return self._documents[self._position : end]

    def take(self, count: int) -> Sequence[bytes]:
        """Remove and return the first documents, as many as there are up to this number; as `peek`."""
        taken = self.peek(count)
        self._position += len(taken)
        if self._position * 2 >= len(self._documents):  # so that all copying together costs no more than the taking
            self._documents, self._position = self._documents[self._position :], 0
        return taken

    def _read(self, rest: DocumentArray, count: int) -> None:
        try:
            self._documents = [*self._documents[self._position :], *rest.take(count)]
        except InvalidBSONError as error:
            raise RemoteProtocolError(f"a cursor reply: {error}") from error
        self._position = 0
        if not rest:
            self._rest = None
