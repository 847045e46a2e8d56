"""Ranges of ``_id`` in which a collection is copied and compared, and the pieces in which they are read. Pure.

A piece of a copied range is open from before it is read until after it is written. If a document of an open piece is
changed, the piece may have an older state of it, or an insert may come after the change. So the document is marked as
touched. The copy reads and writes touched documents once more, while no changes are applied.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from bson.raw_bson import RawBSONDocument

from shardwright.sync.changes import Value, id_of
from shardwright.wire import rawbson

RANGE_BYTES: Final = 32_000_000
RANGES_MAX: Final = 256
SAMPLES_PER_RANGE: Final = 10

Bound = bytes | None
"""A document with the bound as its ``_id``; None for no bound. A range includes its upper bound, not its lower one."""


def count_for(size: int) -> int:
    """Return the number of ranges for a collection of ``size`` bytes."""
    return max(1, min(RANGES_MAX, size // RANGE_BYTES))


def bounds_from(samples: Sequence[bytes], count: int) -> list[tuple[Bound, Bound]]:
    """Return ``count`` ranges, or fewer, that cover every value.

    Args:
        samples: documents with ``_id`` alone, in its order.
    """
    cuts: list[bytes] = []
    for number in range(1, count):
        each = samples[number * len(samples) // count] if samples else None
        if each is not None and (not cuts or id_of(cuts[-1]) != id_of(each)):
            cuts.append(each)
    return list(pairwise([None, *cuts, None]))


def piece_limit(documents: int, size: int, *, documents_max: int, bytes_max: int) -> int:
    """Return the number of documents to read at a time, from the average size of the earlier ones."""
    if not documents or not size:
        return min(documents_max, 100)
    return max(1, min(documents_max, bytes_max * documents // size))


Key = Value

Hashes = Mapping[Key, frozenset[bytes]]
"""The hashes of the documents with each ``_id``; several if the shard key does not contain it."""


def hashes(documents: Iterable[bytes]) -> Hashes:
    """Hash documents by their bytes: the order of fields and the types of numbers count."""
    found: dict[Key, frozenset[bytes]] = {}
    for document in documents:
        one = frozenset((hashlib.blake2b(document, digest_size=16).digest(),))
        key = id_of(document)
        found[key] = found[key] | one if key in found else one
    return found


def digest(found: Hashes) -> bytes:
    """Return a digest of a range, which does not depend on the order of reading."""
    total = 0
    for each in found.values():
        for value in each:
            total = (total + int.from_bytes(value)) % 2**128
    return total.to_bytes(16)


@dataclass(frozen=True)
class Differences:
    """The ``_id`` values at which two ends differ.

    Attributes:
        missing: only the source has them.
        extra: only the target has them.
        different: both have them, with other documents.
    """

    missing: tuple[Key, ...] = ()
    extra: tuple[Key, ...] = ()
    different: tuple[Key, ...] = ()

    @property
    def all(self) -> tuple[Key, ...]:
        """The values of all three kinds."""
        return (*self.missing, *self.extra, *self.different)


def differences(source: Hashes, target: Hashes) -> Differences:
    """Compare two pieces."""
    if source == target:
        return Differences()
    return Differences(
        tuple(key for key in source if key not in target),
        tuple(key for key in target if key not in source),
        tuple(key for key, found in source.items() if key in target and target[key] != found),
    )


def id_bound(key: Key) -> bytes:
    """Return ``{_id: value}`` as a document."""
    return rawbson.wrap_value(*key, name=b"_id")


def last_bound(documents: Sequence[RawBSONDocument]) -> bytes | None:
    """Return ``{_id: value}`` of the last document; None without documents."""
    return id_bound(id_of(bytes(documents[-1].raw))) if documents else None


def ids_filter(keys: Iterable[Key]) -> RawBSONDocument:
    """Return the query for the documents with some ``_id`` values."""
    values = [rawbson.element(b"%d" % number, *key) for number, key in enumerate(keys)]
    among = rawbson.wrap_value(rawbson.ARRAY, rawbson.from_elements(b"".join(values)), name=b"$in")
    return rawbson.raw_document(rawbson.wrap_value(rawbson.OBJECT, among, name=b"_id"))


def range_filter(low: Bound, high: Bound) -> dict[str, Any]:
    """Return a filter for the documents after ``low``, up to and with ``high``.

    ``$expr`` compares values of all types, as the index orders them; ``$gt`` alone finds values of the same type only.
    """
    conditions = [
        {operator: ["$_id", rawbson.raw_document(rawbson.wrap_value(*id_of(bound), name=b"$literal"))]}
        for operator, bound in (("$gt", low), ("$lte", high))
        if bound is not None
    ]
    return {"$expr": {"$and": conditions}} if conditions else {}


def find_command(
    collection: str, low: Bound, high: Bound, limit: int, read_concern: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the command that reads a piece of a range in the order of ``_id``."""
    return {
        "find": collection,
        "filter": range_filter(low, high),
        "hint": {"_id": 1},
        "sort": {"_id": 1},
        "limit": limit,
        "batchSize": limit,
        "singleBatch": True,
        "readConcern": dict(read_concern),
    }


class Piece:
    """An open piece.

    Attributes:
        touched: the ``_id`` values that have changed while it was open.
    """

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        self.touched: set[Value] = set()


class OpenPieces:
    """All open pieces."""

    def __init__(self) -> None:
        self._open: set[Piece] = set()

    def open(self, namespace: str) -> Piece:
        """Open a piece; to be called before it is read."""
        piece = Piece(namespace)
        self._open.add(piece)
        return piece

    def close(self, piece: Piece) -> None:
        """Close a piece that was written or abandoned."""
        self._open.discard(piece)

    def touch(self, namespace: str, keys: Iterable[Value]) -> None:
        """Mark documents as changed; to be called before they are written."""
        keys = set(keys)
        for piece in self._open:
            if piece.namespace == namespace:
                piece.touched |= keys

    def count(self, namespace: str) -> int:
        """Return the number of a collection's open pieces."""
        return sum(piece.namespace == namespace for piece in self._open)
