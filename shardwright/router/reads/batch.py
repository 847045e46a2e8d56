"""A batch of a cursor reply while it is being filled."""

from collections import deque
from typing import Final

from shardwright.wire.limits import BSON_OBJECT_BYTES_MAX

FIRST_BATCH_DOCUMENTS: Final = 101
"""How many documents the first batch of ``find`` holds when no ``batchSize`` is given."""

ELEMENT_BYTES: Final = 9
"""Overhead of a document in the array: type byte, index of up to seven digits, NUL."""


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

    def take_from(self, documents: deque[bytes], count_max: int | None) -> int:
        """Move as many documents as there is room for, but no more than ``count_max``; returns how many it were."""
        room = len(documents)
        for bound in (count_max, self.documents_missing):
            if bound is not None and bound < room:
                room = bound
        taken, size = self.documents, self.size
        count_before = len(taken)
        for _ in range(room):
            size += len(documents[0]) + ELEMENT_BYTES
            if taken and size > BSON_OBJECT_BYTES_MAX:
                break
            taken.append(documents.popleft())
            self.size = size
        return len(taken) - count_before
