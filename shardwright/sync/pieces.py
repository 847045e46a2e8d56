"""Pieces of ranges that are being copied while changes are applied. Pure.

A piece is open from before it is read until after it is written. If a document of an open piece is changed, the piece
may have an older state of it, or an insert may come after the change. So the document is marked as touched. The copy
reads and writes touched documents once more, while no changes are applied.
"""

from collections.abc import Iterable

from shardwright.sync.changes import Value


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
