"""Merging the results of several shards, without I/O: documents in, documents out.

Each shard's cursor is a *source* with a number. Documents are fed to a source as they come; `ResultMerger.fill` moves
the documents that are known to come next into a batch. When it stops, `starving` names the sources whose next documents
are needed to go on.

In an order, keys are read for some documents of each source at a time. Up to the smallest of the sources' last keys,
everything that comes next is known, and Python's sort merges it: it finds that it is given sorted runs.
"""

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Sequence
from operator import itemgetter
from typing import Final, Protocol

from shardwright.router.reads.batch import ELEMENT_BYTES, Batch

_OBJECT_BYTES: Final = 48
"""Memory overhead of a document."""

_KEYED_FIRST: Final = 32
"""A find with a limit uses few documents of each source, and the keys of the others would be read in vain."""

_KEYED_AT_ONCE_MAX: Final = 1024
"""In a long merge, the keys of a quarter as many documents as before are read at once, up to this number."""

_key_of = itemgetter(0)


class Order(Protocol):
    """How documents compare."""

    def keyed(self, documents: Sequence[bytes]) -> tuple[list[bytes], Sequence[bytes]]:
        """For each document bytes that compare as it does, and the document as the client gets it.

        Raises:
            RemoteProtocolError: a document lacks what it is sorted by.
        """
        ...


class _Source:
    """One source.

    Attributes:
        waiting: documents whose keys have not been read yet.
        keys: those of the documents that come before these.
        documents: these documents, as the client gets them.
        is_exhausted: nothing more will be fed.
    """

    __slots__ = ("_keyed_count", "documents", "is_exhausted", "keys", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[bytes] = deque()
        self.keys: list[bytes] = []
        self.documents: Sequence[bytes] = ()
        self.is_exhausted = False
        self._keyed_count = 0

    @property
    def is_empty(self) -> bool:
        return not (self.waiting or self.keys)

    @property
    def is_starving(self) -> bool:
        return not (self.waiting or self.keys or self.is_exhausted)

    @property
    def is_known_to_its_end(self) -> bool:
        return self.is_exhausted and not self.waiting

    def read_keys(self, order: Order) -> int:
        """Read the keys of the next documents, unless there are keys left; returns how many more bytes are held."""
        if self.keys or not self.waiting:
            return 0
        waiting = self.waiting
        count = max(_KEYED_FIRST, min(self._keyed_count // 4, _KEYED_AT_ONCE_MAX))
        following = [waiting.popleft() for _ in range(min(len(waiting), count))]
        self._keyed_count += count
        self.keys, self.documents = order.keyed(following)
        return sum(map(len, self.keys)) + sum(map(len, self.documents)) - sum(map(len, following))

    def take(self, count: int) -> tuple[list[bytes], Sequence[bytes]]:
        """Remove the first documents; returns their keys, and them."""
        taken = self.keys[:count], self.documents[:count]
        self.keys, self.documents = self.keys[count:], self.documents[count:]
        return taken


class ResultMerger:
    """Merges sources in sort order, or as they come, and applies skip and limit to the result.

    Documents that compare equal come in the order of their sources' numbers.

    Attributes:
        held_bytes: memory used by documents that were fed but not yet moved into a batch.
    """

    def __init__(self, source_count: int, *, order: Order | None = None, skip: int = 0, limit: int = 0) -> None:
        """Start with empty sources.

        Args:
            source_count: how many there are.
            order: how documents compare, None for no order.
            skip: how many documents to drop first.
            limit: how many documents there are in all at most, 0 for no bound.
        """
        self._sources = [_Source() for _ in range(source_count)]
        self._order = order
        self._skip = skip
        self._remaining = limit or None
        self._next: deque[bytes] = deque()  # known to come next, in an order
        self.held_bytes = 0

    def feed(self, source: int, documents: Sequence[bytes], *, is_exhausted: bool) -> None:
        """Add the next documents of a source that was starving (or is new).

        Args:
            source: its number.
            documents: its next documents, possibly none.
            is_exhausted: whether these are its last.
        """
        fed = self._sources[source]
        fed.waiting.extend(documents)
        fed.is_exhausted = is_exhausted
        self.held_bytes += sum(map(len, documents)) + len(documents) * _OBJECT_BYTES

    def starving(self) -> list[int]:
        """The sources that must be fed to continue: all empty ones, as soon as one of them is needed."""
        if self._next or self.is_done or (self._order is None and any(source.waiting for source in self._sources)):
            return []
        return [number for number, source in enumerate(self._sources) if source.is_starving]

    def fill(self, batch: Batch) -> None:
        """Move documents into the batch until it is full, or the next document is not known.

        Raises:
            RemoteProtocolError: a document lacks what it is sorted by.
        """
        if self._order is None:
            for source in self._sources:
                if not self._move(source.waiting, batch):
                    return
        else:
            while self._move(self._next, batch) and self._remaining != 0 and not batch.is_full:
                self._next = self._merged(self._order)
                if not self._next:
                    return

    @property
    def is_done(self) -> bool:
        """Whether the result is complete."""
        if self._remaining == 0:
            return True
        return not self._next and all(source.is_exhausted and source.is_empty for source in self._sources)

    @property
    def is_unbounded(self) -> bool:
        """Whether no order, skip or limit applies to the rest of the result."""
        return self._order is None and not self._skip and self._remaining is None

    def _merged(self, order: Order) -> deque[bytes]:
        """The documents that are now known to come next; none if some source has to be fed first."""
        bound: tuple[bytes, int] | None = None
        for number, source in enumerate(self._sources):
            if source.is_starving:
                return deque()
            self.held_bytes += source.read_keys(order)
            if source.keys and not source.is_known_to_its_end:
                last = source.keys[-1], number
                bound = last if bound is None else min(bound, last)
        pairs: list[tuple[bytes, bytes]] = []
        for number, source in enumerate(self._sources):
            keys, documents = source.take(_count_up_to(source, number, bound))
            self.held_bytes -= sum(map(len, keys))
            pairs += zip(keys, documents, strict=True)
        pairs.sort(key=_key_of)  # documents that compare equal stay in the order of their sources
        return deque([document for _, document in pairs])

    def _move(self, documents: deque[bytes], batch: Batch) -> bool:
        """Skip documents or add them to the batch, as long as the limit is not reached; returns whether it had room."""
        while self._skip and documents:
            self._skip -= 1
            self.held_bytes -= len(documents.popleft()) + _OBJECT_BYTES
        size_before = batch.size
        count = batch.take_from(documents, self._remaining)
        self.held_bytes -= batch.size - size_before + count * (_OBJECT_BYTES - ELEMENT_BYTES)
        if self._remaining is not None:
            self._remaining -= count
        return not documents or self._remaining == 0


def _count_up_to(source: _Source, number: int, bound: tuple[bytes, int] | None) -> int:
    """How many documents of a source, of those with keys, come no later than a key of a source; all without a bound."""
    if bound is None or bound[1] == number:
        return len(source.keys)
    key, bounding = bound
    # Of documents that compare equal, those of the source with the lower number come first.
    return (bisect_right if number < bounding else bisect_left)(source.keys, key)
