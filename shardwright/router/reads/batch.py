"""A batch of a cursor reply while it is being filled."""

from typing import Final

from shardwright.wire.limits import BSON_OBJECT_BYTES_MAX

FIRST_BATCH_DOCUMENTS: Final = 101
"""How many documents the first batch of ``find`` holds when no ``batchSize`` is given."""

_ELEMENT_BYTES: Final = 9
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
        size = self.size + len(document) + _ELEMENT_BYTES
        if len(documents) == self.documents_max or (documents and size > BSON_OBJECT_BYTES_MAX):
            return False
        documents.append(document)
        self.size = size
        return True
