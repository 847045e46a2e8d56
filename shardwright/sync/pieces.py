"""Pieces of ranges that are being copied while changes are applied. Pure.

A piece is open from before it is read until after it is written. If a document of an open piece is changed, the piece
may have an older state of it, or an insert may come after the change: so the document is touched, and the copy reads
and writes it once more, while no changes are applied.
"""

from collections.abc import Iterable

from shardwright.sync.changes import Value


class Piece:
    """A piece that is open.

    Attributes:
        namespace: of its collection.
        touched: the ``_id`` values that have changed while it was open.
    """

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        self.touched: set[Value] = set()


class OpenPieces:
    """All pieces that are open."""

    def __init__(self) -> None:
        self._open: set[Piece] = set()

    def open(self, namespace: str) -> Piece:
        """A new piece; call this before it is read."""
        piece = Piece(namespace)
        self._open.add(piece)
        return piece

    def close(self, piece: Piece) -> None:
        """The piece is written, or given up."""
        self._open.discard(piece)

    def touch(self, namespace: str, keys: Iterable[Value]) -> None:
        """Note that documents change; call this before they are written."""
        keys = set(keys)
        for piece in self._open:
            if piece.namespace == namespace:
                piece.touched |= keys

    def count(self, namespace: str) -> int:
        """How many pieces of a collection are open."""
        return sum(piece.namespace == namespace for piece in self._open)
