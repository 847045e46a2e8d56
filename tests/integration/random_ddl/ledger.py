"""A model of the possible places of documents whose collections change while they are written.

Changes are made one after the other. Each has an effect on collections as a whole: it removes or renames them. A write
that began when ``n`` changes had ended, and ended when ``m`` had begun, took place after at least ``n`` of them, and
before any but the first ``m``. So a document can only be where these changes, and later ones, have left it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

Document = dict[str, Any]
Effect = Callable[[str], str | None]
"""The new name of a collection, given its full one; None if it is gone."""


def renamed(source: str, target: str) -> Effect:
    """A collection takes the place of another one, or of none."""
    return lambda name: target if name == source else None if name == target else name


def gone(is_gone: Callable[[str], bool]) -> Effect:
    """Collections are dropped."""
    return lambda name: None if is_gone(name) else name


@dataclass
class Written:
    """One document.

    Attributes:
        place: the collection that it was inserted into, by its full name.
        first: number of changes that had certainly taken place before.
        last: number of changes that may have taken place before.
        states: its possible states, if its collection still exists; None if it was deleted, or never inserted.
    """

    place: str
    first: int
    last: int
    states: list[Document | None]


@dataclass
class Ledger:
    """All documents by ``_id``, and all changes; used by several threads."""

    documents: dict[int, Written] = field(default_factory=dict)
    _effects: list[Effect] = field(default_factory=list)
    _ended: int = 0
    _lock: Lock = field(default_factory=Lock)

    @contextmanager
    def change(self, effect: Effect) -> Iterator[None]:
        """A change during the block, which has no effect if the block raises an exception."""
        with self._lock:
            position = len(self._effects)
            self._effects.append(effect)
        try:
            yield
        except BaseException:
            with self._lock:
                self._effects[position] = lambda name: name
            raise
        finally:
            with self._lock:
                self._ended += 1

    def now(self) -> tuple[int, int]:
        """Return the numbers of changes that have ended, and that have begun."""
        with self._lock:
            return self._ended, len(self._effects)

    def insert(self, document: Document, place: str, first: int, *, is_certain: bool = True) -> None:
        """Record an insertion that has just ended, and began when ``first`` changes had ended."""
        states: list[Document | None] = [document] if is_certain else [document, None]
        with self._lock:
            self.documents[document["_id"]] = Written(place, first, len(self._effects), states)

    def possible_places(self, written: Written) -> set[str | None]:
        """Return the possible collections of a document now; None if it may be gone with its collection."""
        with self._lock:
            effects, ended = list(self._effects), self._ended
        # While a change is under way, both count: that it has not had its effect yet, and that it has.
        return {
            _after(written.place, effects[position:until])
            for position in range(written.first, written.last + 1)
            for until in {max(ended, position), len(effects)}
        }

    def check(self, found: Mapping[str, Iterable[Document]]) -> None:
        """Compare all documents with the existing ones, when there are no changes or writes in progress.

        Args:
            found: the documents of each collection, by its full name.

        Raises:
            AssertionError: a document is lost, doubled, in the wrong collection, outdated, or should be gone.
        """
        places: dict[int, list[tuple[str, Document]]] = {}
        for place, documents in found.items():
            for document in documents:
                places.setdefault(document["_id"], []).append((place, document))
        assert places.keys() <= self.documents.keys(), "there are documents that nobody wrote"
        for identity, written in self.documents.items():
            self._check_one(identity, written, places.get(identity, []))

    def _check_one(self, identity: int, written: Written, seen: list[tuple[str, Document]]) -> None:
        possible = self.possible_places(written)
        told = f"{identity}, written to {written.place}, is in {seen}; may be in {possible} as {written.states}"
        assert len(seen) <= 1, f"doubled: {told}"
        for place, document in seen:
            assert place in possible, f"misplaced: {told}"
            assert document in written.states, f"wrong: {told}"
        if not seen:
            assert None in possible or None in written.states, f"lost: {told}"


def _after(place: str, effects: Iterable[Effect]) -> str | None:
    name: str | None = place
    for effect in effects:
        if name is not None:
            name = effect(name)
    return name
