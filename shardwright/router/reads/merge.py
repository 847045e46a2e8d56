"""Merging the results of several shards, without I/O: documents in, documents out.

Each shard's cursor is a *source* with a number. Documents are fed to a source as they come; `ResultMerger.fill` moves
the documents that are known to come next into a batch. When it stops, `starving` names the sources whose next documents
are needed to go on.
"""

from collections import deque
from collections.abc import Sequence
from heapq import heappop, heappush, heapreplace
from typing import Final

from shardwright.router.reads.batch import Batch
from shardwright.router.reads.sort_order import SortOrder, sort_key_span, without_sort_key
from shardwright.wire.rawbson import Span

_OBJECT_BYTES: Final = 48
"""Memory overhead of a document."""


class _Source:
    __slots__ = ("documents", "held_bytes", "is_exhausted")

    def __init__(self) -> None:
        self.documents: deque[bytes] = deque()
        self.held_bytes = 0
        self.is_exhausted = False

    def extend(self, documents: Sequence[bytes]) -> None:
        self.documents.extend(documents)
        self.held_bytes += sum(map(len, documents)) + len(documents) * _OBJECT_BYTES

    def drop_first(self) -> bool:
        """Remove the first document; returns whether there is another one."""
        documents = self.documents
        self.held_bytes -= len(documents.popleft()) + _OBJECT_BYTES
        return len(documents) > 0


class ResultMerger:
    """Merges sources in sort order, or as they come, and applies skip and limit to the result.

    Documents that compare equal come in the order of their sources' numbers.
    """

    def __init__(self, source_count: int, *, order: SortOrder | None = None, skip: int = 0, limit: int = 0) -> None:
        """Start with empty sources.

        Args:
            source_count: how many there are.
            order: how documents compare, None for no order. Ordered documents lose their ``$sortKey`` here.
            skip: how many documents to drop first.
            limit: how many documents there are in all at most, 0 for no bound.
        """
        self._sources = [_Source() for _ in range(source_count)]
        self._order = order
        self._skip = skip
        self._remaining = limit or None
        # Of every source with documents: the key of its first one, its number, and where the key is in that document.
        self._heads: list[tuple[bytes, int, Span]] = []

    def feed(self, source: int, documents: Sequence[bytes], *, is_exhausted: bool) -> None:
        """Add the next documents of a source that was starving (or is new).

        Args:
            source: its number.
            documents: its next documents, possibly none.
            is_exhausted: whether these are its last.

        Raises:
            RemoteProtocolError: a document lacks its ``$sortKey``.
        """
        fed = self._sources[source]
        was_empty = not fed.documents
        fed.extend(documents)
        fed.is_exhausted = is_exhausted
        if self._order is not None and was_empty and documents:
            heappush(self._heads, self._head(self._order, source))

    def starving(self) -> list[int]:
        """The sources that must be fed to continue: all empty ones, as soon as one of them is needed."""
        if self.is_done or (self._order is None and any(source.documents for source in self._sources)):
            return []
        return [
            number for number, source in enumerate(self._sources) if not source.documents and not source.is_exhausted
        ]

    def fill(self, batch: Batch) -> None:
        """Move documents into the batch until it is full, or the next document is not known.

        Raises:
            RemoteProtocolError: a document lacks its ``$sortKey``.
        """
        if self._order is None:
            self._fill_unordered(batch)
        else:
            self._fill_ordered(batch, self._order)

    @property
    def is_done(self) -> bool:
        """Whether the result is complete."""
        if self._remaining == 0:
            return True
        return all(source.is_exhausted and not source.documents for source in self._sources)

    @property
    def held_bytes(self) -> int:
        """Memory used by documents that were fed but not yet moved into a batch."""
        keys = sum(len(key) + _OBJECT_BYTES for key, _, _ in self._heads)
        return keys + sum(source.held_bytes for source in self._sources)

    @property
    def is_unbounded(self) -> bool:
        """Whether no order, skip or limit applies to the rest of the result."""
        return self._order is None and not self._skip and self._remaining is None

    def _fill_unordered(self, batch: Batch) -> None:
        for source in self._sources:
            while source.documents and self._remaining != 0:
                if not self._emit(source.documents[0], batch):
                    return
                source.drop_first()

    def _fill_ordered(self, batch: Batch, order: SortOrder) -> None:
        heads, sources = self._heads, self._sources
        while heads and self._remaining != 0:
            if len(heads) < len(sources) and self._is_any_unknown():
                return
            _, number, span = heads[0]
            source = sources[number]
            if not self._emit(without_sort_key(source.documents[0], span), batch):
                return
            if source.drop_first():
                heapreplace(heads, self._head(order, number))
            else:
                heappop(heads)

    def _is_any_unknown(self) -> bool:
        """Whether a source without documents may still hold the one that comes first."""
        return any(not source.documents and not source.is_exhausted for source in self._sources)

    def _emit(self, document: bytes, batch: Batch) -> bool:
        """Skip a document or add it to the batch; returns whether that was possible."""
        if self._skip:
            self._skip -= 1
            return True
        if not batch.add(document):
            return False
        if self._remaining is not None:
            self._remaining -= 1
        return True

    def _head(self, order: SortOrder, number: int) -> tuple[bytes, int, Span]:
        document = self._sources[number].documents[0]
        span = sort_key_span(document)
        return order.key(document, span), number, span
