"""Folding the changes of a batch into as few writes as possible. Pure.

Changes of one document are folded in their order. A whole document or a deletion replaces everything before it, and
updates of separate paths become one. Documents keep the order of their last changes.

If the copy has read a document later than a change, the old update is applied to a newer state. That is harmless: every
change between the two states follows, and all of them set absolute values.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from shardwright.sync.changes import Change, Delta, Value
from shardwright.wire import rawbson

SetRun = tuple[tuple[str, Value], ...]


@dataclass(frozen=True)
class Put:
    """The document's full new content."""

    document: bytes


@dataclass(frozen=True)
class Remove:
    """The deletion of the document."""


@dataclass(frozen=True)
class Patch:
    """An update of the document, if it exists."""

    delta: Delta


@dataclass(frozen=True)
class Reread:
    """A change that an update cannot express; the source has to be read."""


Operation = Put | Remove | Patch | Reread


@dataclass(frozen=True)
class Folded:
    """The changes of one document in a batch."""

    namespace: str
    key: bytes
    id: Value
    operations: tuple[Operation, ...]
    size: int = 0


_Place = tuple[str, bytes]


def folded(changes: Iterable[Change]) -> list[Folded]:
    """Fold all changes of documents into writes with the same effect, in the order of each document's last change."""
    found: dict[_Place, tuple[list[Operation], int]] = {}
    for change in changes:
        place = (change.namespace, change.key)
        operations, size = found.pop(place, ([], 0))
        found[place] = (_with(operations, change), size + change.size)
    return [
        Folded(namespace, key, _id(key), tuple(operations), size)
        for (namespace, key), (operations, size) in found.items()
    ]


def _id(key: bytes) -> Value:
    span = rawbson.find(key, b"_id")
    assert span is not None, "a document key without _id"
    return span[0], key[span[2] : span[3]]


def _with(operations: list[Operation], change: Change) -> list[Operation]:
    if change.kind == "delete":
        return [Remove()]
    if change.document is not None:
        return [Put(change.document)]
    assert change.delta is not None, f"a change of kind {change.kind} without its document"
    if operations and isinstance(operations[-1], Reread):
        return operations
    if change.delta.is_ambiguous:
        return [Reread()]
    if operations and isinstance(last := operations[-1], Patch):
        both = combined(last.delta, change.delta)
        if both is not None:
            return [*operations[:-1], Patch(both)]
    return [*operations, Patch(change.delta)]


def combined(first: Delta, second: Delta) -> Delta | None:
    """Combine two updates; None if that could give another document, or another order of its fields."""
    if first.truncations or second.truncations:
        return None
    paths = set(first.paths)
    prefixes = {prefix for path in paths for prefix in _prefixes(path)}
    sets, unsets = dict(first.sets), dict.fromkeys(first.unsets)
    for path in second.paths:
        if path in prefixes or any(prefix in paths for prefix in _prefixes(path)):
            return None
    for path, value in second.sets:
        if path in unsets:
            return None
        sets[path] = value
    for path in second.unsets:
        if "." in path and path in sets:
            return None  # it may be an element of an array, which becomes null
        sets.pop(path, None)
        unsets[path] = None
    return Delta(tuple(sets.items()), tuple(unsets))


def _prefixes(path: str) -> Iterator[str]:
    parts = path.split(".")
    for count in range(1, len(parts)):
        yield ".".join(parts[:count])


def updates(delta: Delta) -> Sequence[Mapping[str, Any]]:
    """Return the update documents that apply a delta, one after the other.

    ``$set`` adds new fields in the order of their names, but the source may have added them in any order. So fields are
    set in several steps where the orders would differ.
    """
    steps: list[dict[str, Any]] = []
    if delta.truncations:
        pushes = {path: {"$each": [], "$slice": length} for path, length in delta.truncations}
        steps += [{"$push": {path: push}} for path, push in pushes.items()]
    runs = list(_runs(delta.sets))
    if delta.unsets:
        removed: dict[str, Any] = {"$unset": dict.fromkeys(delta.unsets, "")}
        steps.append(removed)
        if runs:
            removed["$set"] = _set_document(runs.pop(0))
    steps += [{"$set": _set_document(run)} for run in runs]
    return steps


def parents(delta: Delta) -> list[str]:
    """Return the fields that contain the changed ones; a document without one of them is in another state."""
    return sorted({path.rpartition(".")[0] for path in delta.paths if "." in path})


def _set_document(run: SetRun) -> Mapping[str, Any]:
    elements = b"".join(rawbson.element(path.encode(), kind, value) for path, (kind, value) in run)
    return rawbson.raw_document(rawbson.from_elements(elements))


def _runs(sets: SetRun) -> Iterator[SetRun]:
    """Yield the fields in runs that are in the order of ``$set``."""
    begin = 0
    for position, ((path, _), (following, _)) in enumerate(pairwise(sets), 1):
        if not _order(path) < _order(following):
            yield sets[begin:position]
            begin = position
    if sets:
        yield sets[begin:]


def _order(path: str) -> tuple[tuple[int, int, bytes], ...]:
    """Return a sort key with the order of ``$set``: numbers by value, before other names."""
    return tuple(
        (0, int(part), b"") if part.isascii() and part.isdigit() else (1, 0, part.encode()) for part in path.split(".")
    )
