"""Batches of change stream events: their division, and the writes that they become. Pure.

A batch is applied as a whole. It ends where the cluster time changes, so that it contains whole transactions of the
source. Each DDL event is a batch of its own.

The changes of a batch are folded into as few writes as possible, in the order of the changes of each document. A whole
document or a deletion replaces everything before it, and updates of separate paths become one. Documents keep the order
of their last changes.

If the copy has read a document later than a change, the old update is applied to a newer state. That is harmless: every
change between the two states follows, and all of them set absolute values.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from bson.timestamp import Timestamp

from shardwright.sync.changes import Change, Delta, Mark, Value, id_of
from shardwright.sync.checkpoint import NO_TIME
from shardwright.wire import rawbson

Item = Change | Mark

Moment = tuple[Timestamp, Timestamp]
"""A time of the source, and the time of the target at which the target had that state."""

PARTS_SECONDS: Final = 1

BUSY_SECONDS: Final = 10
"""Time without a certain moment after which an uncertain one is used, because there may be no other."""

DOCUMENTS_MAX: Final = 1000
BYTES_MAX: Final = 10_000_000
BUFFER_BYTES_MAX: Final = 64_000_000
"""A larger transaction of the source is applied in parts."""

MEMORY_MAX: Final = 256_000_000

_COPIES: Final = 3
"""Copies of a piece in memory: as documents, as writes, and as the message to the target."""

SetRun = tuple[tuple[str, Value], ...]


@dataclass(frozen=True)
class Limits:
    """Size limits of a batch.

    Attributes:
        documents: changes, unless a transaction has more.
        bytes: size of the changes, unless a transaction is larger.
        buffer_bytes: maximum size of the buffer; a larger transaction is applied in parts.
    """

    documents: int = DOCUMENTS_MAX
    bytes: int = BYTES_MAX
    buffer_bytes: int = BUFFER_BYTES_MAX

    @classmethod
    def within(cls, memory: int, *, workers: int, documents: int = DOCUMENTS_MAX, size: int = BYTES_MAX) -> "Limits":
        """Choose limits with which all buffers together fit into ``memory`` bytes.

        Each worker of the copy holds a piece and the writes made from it. The follower holds a batch and a buffer.

        Raises:
            ValueError: there is not enough memory for these.
        """
        left = memory - (workers + 1) * _COPIES * size
        if left < size:
            needed = (workers + 1) * _COPIES * size + size
            raise ValueError(f"{workers} workers with {size:,} bytes each need a limit of {needed:,} bytes or more")
        return cls(documents, size, min(left, BUFFER_BYTES_MAX))


@dataclass(frozen=True)
class Batch:
    """Changes that are applied together.

    Attributes:
        changes: in their order; empty if only the position advances.
        items: number of items taken from the buffer.
        token: the resume token after them.
        time: the cluster time of the source after the batch.
        is_whole: whether the batch has all changes of the source up to this time, so that the target then equals a
            state of the source.
    """

    changes: tuple[Change, ...]
    items: int
    token: bytes
    time: Timestamp
    is_whole: bool


class Moments:
    """The states of the source that the target has equalled.

    The parts of a transaction on several shards have different cluster times, and are applied one after the other.
    Between them, the target does not equal any state of the source. A later part may still follow, so a moment becomes
    certain only some time later.

    A snapshot of the source at the time of a moment may have further transactions on several shards. A snapshot
    contains a transaction from its commit on. That time is in no event, and is earlier than the times of all parts.

    Attributes:
        newest: the cluster times of source and target at the newest known moment; None before the first.
    """

    def __init__(self, parts_seconds: int = PARTS_SECONDS) -> None:
        """Start without a moment.

        Args:
            parts_seconds: the assumed maximum time between two parts of a transaction; 0 if all have the same time.
        """
        self.newest: Moment | None = None
        self._seconds = parts_seconds
        self._candidates: list[Moment] = []
        self._begun: dict[bytes, Timestamp] = {}
        self._is_present = False
        self._settled = NO_TIME
        self._doubtful: Moment | None = None

    @property
    def is_open(self) -> bool:
        """Whether there are moments that are not certain yet."""
        return bool(self._candidates)

    def applied(self, changes: Iterable[Change]) -> None:
        """Note changes that the target has from now on."""
        for change in changes:
            self._is_present = False
            if change.transaction is not None and self._seconds:
                first = self._begun.setdefault(change.transaction, change.time)
                for each in [each for each in self._candidates if first <= each[0] < change.time]:
                    self._candidates.remove(each)
                    self._doubtful = each

    def equalled(self, source: Timestamp, target: Timestamp) -> None:
        """Note that the target has everything up to a time of the source, at a time of its own."""
        self._is_present = True
        self._settled = self._settled if self._settled.time else source
        self._candidates.append((source, target))

    def reached(self, source: Timestamp) -> None:
        """Settle the moments that are certain when the stream has reached a time of the source."""
        for moment in reversed(self._candidates):
            last = max((first.time for first in self._begun.values() if first <= moment[0]), default=-BUSY_SECONDS)
            if moment[0].time - last > self._seconds or source.time - moment[0].time > self._seconds:
                self._settle(moment)
                break
        if self._doubtful is not None and source.time - self._settled.time > BUSY_SECONDS:
            self._settle(self._doubtful)
        limit = source.time - self._seconds - 1
        self._begun = {each: first for each, first in self._begun.items() if first.time >= limit}

    def _settle(self, moment: Moment) -> None:
        self.newest, self._settled, self._doubtful = moment, moment[0], None
        self._candidates = [each for each in self._candidates if each[0] > moment[0]]

    def note_idle(self, source: Timestamp, target: Timestamp) -> None:
        """Note that the target still equals the source: the times of both have advanced without a change."""
        if not self._is_present:
            return
        if self.newest is not None and self.newest[0] == source:
            self.newest = source, target
        self._candidates = [(source, target) if each[0] == source else each for each in self._candidates]


def cut(
    buffer: Sequence[Item], limits: Limits, *, closes_at_once: bool, last_change: Timestamp = NO_TIME
) -> Batch | None:
    """Cut the next batch; None if more has to be read first.

    Args:
        closes_at_once: whether a mark with the time of an event rules out further events of that time. With several
            shards behind the stream it does not.
        last_change: time of the last change of the earlier batches.
    """
    documents = size = buffered = 0
    end: int | None = None
    is_whole = False
    for position, item in enumerate(buffer):
        is_ddl = isinstance(item, Change) and not item.is_of_document
        if is_ddl and end is not None:
            break
        if isinstance(item, Change):
            documents += 1
            size += item.size
            buffered += item.size
            if end is not None and (documents > limits.documents or size > limits.bytes):
                break
        following = buffer[position + 1] if position + 1 < len(buffer) else None
        if _is_boundary(item, following, closes_at_once=closes_at_once):
            end, is_whole = position + 1, closes_at_once or _is_alone(buffer, position, last_change)
        elif is_ddl or _is_ddl(following):
            end, is_whole = position + 1, False
        if is_ddl:
            break
    if end is None:
        if buffered <= limits.buffer_bytes:
            return None
        end, is_whole = len(buffer), False
    changes = tuple(item for item in buffer[:end] if isinstance(item, Change))
    last = buffer[end - 1]
    time = last.time if closes_at_once or isinstance(last, Change) else before(last.time)
    return Batch(changes, end, last.token, time, is_whole)


def before(time: Timestamp) -> Timestamp:
    """Return the latest cluster time before another one."""
    return Timestamp(time.time, time.inc - 1) if time.inc else Timestamp(time.time - 1, 2**32 - 1)


def _is_ddl(item: Item | None) -> bool:
    return isinstance(item, Change) and not item.is_of_document


def _is_alone(buffer: Sequence[Item], position: int, last_change: Timestamp) -> bool:
    """Whether an item is anything but a mark with the time of the event before it."""
    item = buffer[position]
    return isinstance(item, Change) or (buffer[position - 1].time if position else last_change) < item.time


def _is_boundary(item: Item, following: Item | None, *, closes_at_once: bool) -> bool:
    """Whether no further event can have the time of this item."""
    if isinstance(item, Mark):
        # A mark without a time of its own is the token of the last event.
        return following is None or following.time > item.time
    if following is None:
        return False
    if isinstance(following, Mark) and closes_at_once:
        return following.time >= item.time
    return following.time > item.time


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
        Folded(namespace, key, id_of(key), tuple(operations), size)
        for (namespace, key), (operations, size) in found.items()
    ]


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
