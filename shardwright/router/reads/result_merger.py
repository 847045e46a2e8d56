"""The results merger: merges the results of several shards. No I/O.

Each shard's cursor is a *source* with a number. Documents are fed to a source as they arrive. `ResultMerger.fill` moves
the documents that are certain to come next into a batch. When it stops, `starving` names the sources whose next
documents are needed to continue.

A batch is split into documents only on demand. A sorted find with a limit on two shards uses only about half of the
documents that they return.

With an order, keys are read for some documents of each source at a time. All documents up to the smallest of the
sources' last keys can be merged. Python's sort does that, as it detects sorted runs.
"""

import sys
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Final, Protocol

from shardwright.wire.errors import RemoteProtocolError
from shardwright.wire.limits import BSON_OBJECT_BYTES_MAX
from shardwright.wire.rawbson import DocumentArray, InvalidBSONError

_OBJECT_BYTES: Final = 48
"""Memory overhead of a document."""


def held_bytes(documents: Sequence[bytes]) -> int:
    """Return the memory used by documents."""
    return sum(map(len, documents)) + len(documents) * _OBJECT_BYTES


class DocumentQueue:
    """A queue of documents in order."""

    __slots__ = ("_documents", "_position", "_rest")

    def __init__(self) -> None:
        self._documents: Sequence[bytes] = ()
        self._position = 0
        self._rest: DocumentArray | None = None

    def __bool__(self) -> bool:
        """Whether there are any documents."""
        return self._position < len(self._documents) or self._rest is not None

    @property
    def held_bytes(self) -> int:
        """Memory used by the documents, including taken ones that are not yet released."""
        return held_bytes(self._documents) + (0 if self._rest is None else self._rest.held_bytes)

    def put(self, documents: Sequence[bytes]) -> None:
        """Put documents into the queue, which must be empty."""
        assert not self
        self._documents, self._position = documents, 0

    def put_array(self, documents: DocumentArray) -> None:
        """Do the same as `put` for a batch as received; a malformed batch is detected when it is read."""
        self.put(())
        self._rest = documents or None

    def peek(self, count: int) -> Sequence[bytes]:
        """Return the first documents, at most ``count``.

        Raises:
            RemoteProtocolError: a batch is malformed.
        """
        end = self._position + count
        if self._rest is not None and end > len(self._documents):
            self._read(self._rest, end - len(self._documents))
            end = count
        return self._documents[self._position : end]

    def take(self, count: int) -> Sequence[bytes]:
        """Remove and return the first documents, at most ``count``; errors as for `peek`."""
        taken = self.peek(count)
        self._position += len(taken)
        if self._position * 2 >= len(self._documents):  # keeps the total cost of copying linear
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


FIRST_BATCH_DOCUMENTS: Final = 101
"""Number of documents in the first batch of a ``find`` without ``batchSize``."""

ELEMENT_BYTES: Final = 9
"""Overhead of a document in the array: type byte, index of up to seven digits, NUL."""

_ALL: Final = sys.maxsize


class Batch:
    """Documents for one reply, bounded in number and, as in MongoDB, in bytes.

    Attributes:
        documents_max: the maximum number, None for as many as fit.
        size: bytes of the documents in the reply.
    """

    __slots__ = ("documents", "documents_max", "size")

    def __init__(self, documents_max: int | None) -> None:
        self.documents: list[bytes] = []
        self.documents_max = documents_max
        self.size = 0

    @property
    def is_full(self) -> bool:
        """Whether the maximum number of documents is reached."""
        return self.documents_max is not None and len(self.documents) >= self.documents_max

    @property
    def documents_missing(self) -> int | None:
        """The number of documents that it still accepts, None for as many as fit."""
        return None if self.documents_max is None else self.documents_max - len(self.documents)

    def add(self, document: bytes) -> bool:
        """Add a document if it fits, as the first one always does; return whether it was added."""
        documents = self.documents
        size = self.size + len(document) + ELEMENT_BYTES
        if len(documents) == self.documents_max or (documents and size > BSON_OBJECT_BYTES_MAX):
            return False
        documents.append(document)
        self.size = size
        return True

    def take_from(self, documents: DocumentQueue, count_max: int | None) -> int:
        """Move as many documents as fit, at most ``count_max``; return their number."""
        bounds = (bound for bound in (count_max, self.documents_missing) if bound is not None)
        following = documents.peek(min(bounds, default=_ALL))
        count = len(following)
        size = self.size + sum(map(len, following)) + count * ELEMENT_BYTES
        if size > BSON_OBJECT_BYTES_MAX:
            count, size = self._count_with_room(following)
        self.documents += documents.take(count)
        self.size = size
        return count

    def _count_with_room(self, documents: Sequence[bytes]) -> tuple[int, int]:
        """Return how many documents fit, and the size including them."""
        size = self.size
        for count, document in enumerate(documents):
            size_with = size + len(document) + ELEMENT_BYTES
            if size_with > BSON_OBJECT_BYTES_MAX and (count or self.documents):
                return count, size
            size = size_with
        return len(documents), size


_KEYED_MIN: Final = 32
"""Minimum number of keys of a source that are read at once. Reading keys of unneeded documents is wasted work."""

_KEYED_AT_ONCE_MAX: Final = 1024
"""Maximum of keys read at once. A long merge reads a quarter of the number already read from the source."""


class ShareTooSmallError(Exception):
    """Sources returned only a share of the result each, and one of them may have more of it."""


class Order(Protocol):
    """A sort order of documents."""

    def keyed(self, documents: Sequence[bytes]) -> tuple[list[bytes], Sequence[bytes]]:
        """Return the keys of documents, which compare as the documents do, and the documents for the client.

        Raises:
            RemoteProtocolError: a document lacks its sort key.
        """
        ...


class _Source:
    """One source.

    Attributes:
        waiting: documents whose keys have not been read yet.
        keys: the keys of the documents before ``waiting``.
        documents: the documents with these keys, in the form for the client.
        is_exhausted: whether nothing more will be fed.
    """

    __slots__ = ("_keyed_count", "_share", "documents", "is_exhausted", "keys", "waiting")

    def __init__(self, share: int | None) -> None:
        self.waiting = DocumentQueue()
        self.keys: list[bytes] = []
        self.documents: Sequence[bytes] = ()
        self.is_exhausted = False
        self._share = share
        self._keyed_count = 0

    @property
    def is_empty(self) -> bool:
        return not (self.waiting or self.keys)

    @property
    def is_starving(self) -> bool:
        return not (self.waiting or self.keys or self.is_exhausted)

    @property
    def is_cut_off(self) -> bool:
        """Whether the share ended the source, so that documents after its last key are unknown."""
        return self._share is not None and self._keyed_count >= self._share and self.is_exhausted and not self.waiting

    @property
    def is_known_to_its_end(self) -> bool:
        return self.is_exhausted and not self.waiting and not self.is_cut_off

    @property
    def held_bytes(self) -> int:
        return self.waiting.held_bytes + sum(map(len, self.keys)) + held_bytes(self.documents)

    def read_keys(self, order: Order, needed_each: int) -> None:
        """Read the keys of the next documents, unless there are keys left.

        Args:
            needed_each: the average number of documents needed from each source; 25% more are read.
        """
        if self.keys or not self.waiting:
            return
        count = max(_KEYED_MIN, needed_each + needed_each // 4, min(self._keyed_count // 4, _KEYED_AT_ONCE_MAX))
        self.keys, self.documents = order.keyed(self.waiting.take(count))
        self._keyed_count += len(self.keys)

    def take(self, count: int) -> tuple[list[bytes], Sequence[bytes]]:
        """Remove and return the first keys and their documents."""
        taken = self.keys[:count], self.documents[:count]
        self.keys, self.documents = self.keys[count:], self.documents[count:]
        return taken


class ResultMerger:
    """Merges sources in sort order, or in any order, and applies skip and limit to the result.

    Documents that compare equal come in the order of their sources' numbers.
    """

    def __init__(
        self,
        source_count: int,
        *,
        order: Order | None = None,
        skip: int = 0,
        limit: int = 0,
        share: int | None = None,
    ) -> None:
        """Start with empty sources.

        Args:
            limit: the maximum number of documents in total, 0 for no bound.
            share: the number of documents requested from each source, if these may be too few. The first batch must
                then complete the result (see `check_shares`).
        """
        self._sources = [_Source(share) for _ in range(source_count)]
        self._has_shares = share is not None
        self._order = order
        self._skip = skip
        self._remaining = limit or None
        self._next = DocumentQueue()  # known to come next, in an order

    def feed(self, source: int, documents: DocumentArray | None, *, is_exhausted: bool) -> None:
        """Add the next documents of a source that was starving (or is new).

        Args:
            documents: its next batch, None for no documents.
            is_exhausted: whether these are its last.
        """
        fed = self._sources[source]
        if documents is not None:
            fed.waiting.put_array(documents)
        fed.is_exhausted = is_exhausted

    def starving(self) -> list[int]:
        """Return the sources that must be fed to continue: all empty ones, as soon as one of them is needed."""
        if self._next or self.is_done or (self._order is None and any(source.waiting for source in self._sources)):
            return []
        return [number for number, source in enumerate(self._sources) if source.is_starving]

    def fill(self, batch: Batch) -> None:
        """Move documents into the batch until it is full, or the next document is unknown.

        Raises:
            RemoteProtocolError: a document lacks its sort key.
        """
        if self._order is None:
            for source in self._sources:
                if not self._move(source.waiting, batch):
                    return
        else:
            while self._move(self._next, batch) and self._remaining != 0 and not batch.is_full:
                self._next.put(self._merged(self._order, self.wanted(batch) or self._skip))
                if not self._next:
                    return

    @property
    def held_bytes(self) -> int:
        """Memory used by documents that were fed but not yet moved into a batch."""
        return self._next.held_bytes + sum(source.held_bytes for source in self._sources)

    @property
    def is_done(self) -> bool:
        """Whether the result is complete."""
        if self._remaining == 0:
            return True
        return not self._next and all(source.is_known_to_its_end and not source.keys for source in self._sources)

    def check_shares(self) -> None:
        """Check that the result is complete, if sources returned only shares of it.

        Raises:
            ShareTooSmallError: it is not.
        """
        if self._has_shares and not self.is_done:
            raise ShareTooSmallError

    @property
    def is_unbounded(self) -> bool:
        """Whether no order, skip or limit applies to the rest of the result."""
        return self._order is None and not self._skip and self._remaining is None

    def wanted(self, batch: Batch) -> int | None:
        """Return how many more documents a batch needs, including those to skip; None for as many as fit."""
        bounds = [bound for bound in (batch.documents_missing, self._remaining) if bound is not None]
        return self._skip + min(bounds) if bounds else None

    def _merged(self, order: Order, wanted: int) -> Sequence[bytes]:
        """Merge the documents that are certain to come next; none if a source must be fed first, or is cut off."""
        bound: tuple[bytes, int] | None = None
        needed_each = min(wanted // len(self._sources), _KEYED_AT_ONCE_MAX)
        for number, source in enumerate(self._sources):
            source.read_keys(order, needed_each)
            if not source.keys and not source.is_known_to_its_end:
                return ()
            if source.keys and not source.is_known_to_its_end:
                last = source.keys[-1], number
                bound = last if bound is None else min(bound, last)
        keys: list[bytes] = []
        documents: list[bytes] = []
        for number, source in enumerate(self._sources):
            its_keys, its_documents = source.take(_count_up_to(source, number, bound))
            keys += its_keys
            documents += its_documents
        # Documents that compare equal stay in the order of their sources.
        return [documents[position] for position in sorted(range(len(keys)), key=keys.__getitem__)]

    def _move(self, documents: DocumentQueue, batch: Batch) -> bool:
        """Skip documents or add them to the batch, up to the limit; return whether the batch had room for all."""
        if self._skip:
            self._skip -= len(documents.take(self._skip))
        count = batch.take_from(documents, self._remaining)
        if self._remaining is not None:
            self._remaining -= count
        return not documents or self._remaining == 0


def _count_up_to(source: _Source, number: int, bound: tuple[bytes, int] | None) -> int:
    """Return how many keyed documents of a source sort no later than a bound, a key and the number of its source."""
    if bound is None or bound[1] == number:
        return len(source.keys)
    key, bounding = bound
    # Among documents that compare equal, the source with the lower number comes first.
    return (bisect_right if number < bounding else bisect_left)(source.keys, key)
