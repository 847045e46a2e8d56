"""A batch of a cursor reply while it is being filled."""

import sys
from collections.abc import Sequence
from typing import Final

from shardwright.router.reads.document_queue import DocumentQueue
from shardwright.wire.limits import BSON_OBJECT_BYTES_MAX

FIRST_BATCH_DOCUMENTS: Final = 101
"""How many documents the first batch of ``find`` holds when no ``batchSize`` is given."""

ELEMENT_BYTES: Final = 9
"""Overhead of a document in the array: type byte, index of up to seven digits, NUL."""

_ALL: Final = sys.maxsize


class Batch:
    """Documents for one reply, bounded in number and, as in MongoDB, in bytes.

    Attributes:
        documents: the raw documents, in order.
        documents_max: the limit on their number, None for as many as there is room for.
        size: bytes of the documents in the reply.
    """

    __slots__ = ("documents", "documents_max", "size")

    def __init__(self, documents_max: int | None) -> None:
        self.documents: list[bytes] = []
        self.documents_max = documents_max
        self.size = 0

    @property
    def is_full(self) -> bool:
        """Whether the number of documents is reached."""
        return self.documents_max is not None and len(self.documents) >= self.documents_max

    @property
    def documents_missing(self) -> int | None:
        """How many more documents it accepts, None for as many as there is room for."""
        return None if self.documents_max is None else self.documents_max - len(self.documents)

    def add(self, document: bytes) -> bool:
        """Add a document if there is room for it, which the first one always has; returns whether there was."""
        documents = self.documents
        size = self.size + len(document) + ELEMENT_BYTES
        if len(documents) == self.documents_max or (documents and size > BSON_OBJECT_BYTES_MAX):
            return False
        documents.append(document)
        self.size = size
        return True

    def take_from(self, documents: DocumentQueue, count_max: int | None) -> int:
        """Move as many documents as there is room for, but no more than ``count_max``; returns how many it were."""
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
        """How many of some documents there is room for, and the size with them."""
        size = self.size
        for count, document in enumerate(documents):
            size_with = size + len(document) + ELEMENT_BYTES
            if size_with > BSON_OBJECT_BYTES_MAX and (count or self.documents):
                return count, size
            size = size_with
        return len(documents), size
