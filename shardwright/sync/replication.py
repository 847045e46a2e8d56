"""A replication as its user sees it: the request, its states, and its progress. Pure.

States and documents of progress have mongosync's names. The id of a replication is a digest of its request.
"""

import hashlib
import json
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final
from urllib.parse import urlsplit

ID_LENGTH: Final = 24

OWN_DATABASE: Final = "shardwright"
"""The database of checkpoints, on both sides."""

OWN_COLLECTION: Final = "sync"
"""Name prefix of the collections in `OWN_DATABASE`."""

NOT_REPLICATED: Final = frozenset({"admin", "config", "local", OWN_DATABASE})
"""Databases that belong to a deployment, and our own."""

RATE_WINDOW_SECONDS: Final = 10.0
BAR_WIDTH: Final = 32

NOTES_MAX: Final = 100
ERROR_MAX: Final = 1000
"""Maximum number of notes, and of characters of an error, in the progress, which is part of one document."""

COPY_PHASE: Final = "collection copy"
FOLLOW_PHASE: Final = "change event application"
"""Phases, as ``info`` of mongosync names them."""


@dataclass(frozen=True)
class Filter:
    """The namespaces that are replicated.

    Attributes:
        include: databases (``db``) and collections (``db.collection``); all if empty.
        exclude: databases and collections; stronger than ``include``.
    """

    include: frozenset[str] = frozenset()
    exclude: frozenset[str] = frozenset()

    def has(self, namespace: str) -> bool:
        """Whether a collection is replicated."""
        database, _, collection = namespace.partition(".")
        if database in NOT_REPLICATED or not collection or collection.startswith("system."):
            return False
        return self.selects(namespace)

    def selects(self, namespace: str) -> bool:
        """Whether the user has selected a collection, even if it is never replicated."""
        if self.is_excluded(namespace):
            return False
        return not self.include or bool(self.include & {namespace.partition(".")[0], namespace})

    def is_excluded(self, namespace: str) -> bool:
        """Whether the user has excluded a collection, or its database, by name."""
        return bool(self.exclude & {namespace.partition(".")[0], namespace})

    def may_have(self, database: str) -> bool:
        """Whether any collection of a database can be replicated."""
        if database in NOT_REPLICATED or database in self.exclude:
            return False
        return not self.include or any(each.partition(".")[0] == database for each in self.include)


@dataclass(frozen=True)
class Replication:
    """A replication as the user has requested it.

    Attributes:
        shard: shard keys for the target, by namespace.
        is_reversed: whether source and target have swapped their roles; then the collections of ``shard`` keep the
            target's keys.
        zones: whether zones are carried, for collections that have the same shard key at both ends.
    """

    source: str
    target: str
    filter: Filter = Filter()
    shard: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    is_reversed: bool = False
    zones: bool = True

    def swapped(self) -> "Replication":
        """Return the opposite direction."""
        return replace(self, source=self.target, target=self.source, is_reversed=not self.is_reversed)

    @property
    def id(self) -> str:
        """A digest of source, target and filters; credentials and the order of hosts do not matter."""
        parts = [place(self.source), place(self.target), sorted(self.filter.include), sorted(self.filter.exclude)]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:ID_LENGTH]


def place(uri: str) -> str:
    """Return the scheme and hosts of a connection string, without credentials and options."""
    parts = urlsplit(uri)
    hosts = parts.netloc.rpartition("@")[2].lower().split(",")
    return f"{parts.scheme}://{','.join(sorted(hosts))}"


class State(StrEnum):
    """A state, as ``progress`` shows it."""

    IDLE = "IDLE"
    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    COMMITTING = "COMMITTING"
    COMMITTED = "COMMITTED"
    REVERSING = "REVERSING"


class Step(StrEnum):
    """A request of a user, or an end that the replication has reached by itself."""

    START = "start"
    PAUSE = "pause"
    RESUME = "resume"
    COMMIT = "commit"
    COMMITTED = "committed"
    COMMIT_FAILED = "commit failed"
    REVERSE = "reverse"
    REVERSED = "reversed"


class StateError(Exception):
    """The request is not possible in the present state."""


_STEPS: Final = {
    (State.IDLE, Step.START): State.RUNNING,
    (State.RUNNING, Step.PAUSE): State.PAUSED,
    (State.PAUSED, Step.RESUME): State.RUNNING,
    (State.RUNNING, Step.COMMIT): State.COMMITTING,
    (State.COMMITTING, Step.COMMITTED): State.COMMITTED,
    (State.COMMITTING, Step.COMMIT_FAILED): State.RUNNING,
    (State.COMMITTED, Step.REVERSE): State.REVERSING,
    (State.REVERSING, Step.REVERSED): State.RUNNING,
}


def state_after(state: State, step: Step) -> State:
    """Return the next state."""
    found = _STEPS.get((state, step))
    if found is None:
        raise StateError(f"cannot {step} a replication that is {state}")
    return found


def copy_progress(ranges: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return ``collectionCopy``, the progress of the copy."""
    return {
        "estimatedTotalBytes": sum(max(each["estimated_bytes"], each["bytes"]) for each in ranges),
        "estimatedCopiedBytes": sum(each["bytes"] for each in ranges),
        "estimatedTotalDocuments": sum(max(each["estimated_documents"], each["documents"]) for each in ranges),
        "copiedDocuments": sum(each["documents"] for each in ranges),
    }


def shown_notes(notes: Sequence[str]) -> list[str]:
    """Return the first `NOTES_MAX` notes, and the number of the others."""
    more = len(notes) - NOTES_MAX
    return [*notes] if more <= 0 else [*notes[:NOTES_MAX], f"and {more:,} more notes"]


def shown_error(error: str | None) -> str | None:
    """Return the beginning of an error; a driver's error may repeat whole documents."""
    return error if error is None or len(error) <= ERROR_MAX else f"{error[:ERROR_MAX]}…"


class Rates:
    """Work per second, over the last `RATE_WINDOW_SECONDS`."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, Mapping[str, int]]] = deque()

    def note(self, now: float, counts: Mapping[str, int]) -> None:
        """Record counts at a moment."""
        if self._samples and any(counts.get(name, 0) < value for name, value in self._samples[-1][1].items()):
            self._samples.clear()  # the copy was planned again
        self._samples.append((now, dict(counts)))
        while len(self._samples) > 2 and self._samples[1][0] <= now - RATE_WINDOW_SECONDS:
            self._samples.popleft()

    def rate(self, name: str) -> float:
        """Return the growth of a total per second."""
        if len(self._samples) < 2:
            return 0.0
        (began, first), (ended, last) = self._samples[0], self._samples[-1]
        return (last.get(name, 0) - first.get(name, 0)) / (ended - began) if ended > began else 0.0

    def seconds_for(self, name: str, left: float) -> int | None:
        """Estimate the seconds until a total has grown by ``left``; None if it does not grow."""
        rate = self.rate(name)
        if left <= 0:
            return 0
        return round(left / rate) if rate > 0 else None


def rates_progress(rates: Rates, copied: Mapping[str, Any], *, is_copied: bool) -> dict[str, Any]:
    """Return ``rates``: work per second, and the remaining time of the copy."""
    left = copied["estimatedTotalBytes"] - copied["estimatedCopiedBytes"]
    return {
        "documentsPerSecond": round(rates.rate("documents"), 1),
        "bytesPerSecond": round(rates.rate("bytes")),
        "eventsPerSecond": round(rates.rate("events"), 1),
        "copySecondsRemaining": 0 if is_copied else rates.seconds_for("bytes", left),
    }


def progress_lines(progress: Mapping[str, Any]) -> list[str]:
    """Format one line for each phase, for a terminal."""
    rates = progress.get("rates", {})
    found = [f"{progress.get('state', 'IDLE')}  {_first(progress)}".rstrip()]
    if (copied := progress.get("collectionCopy")) is not None:
        done, total = copied["copiedDocuments"], copied["estimatedTotalDocuments"]
        found.append(
            f"copy    {_bar(copied['estimatedCopiedBytes'], copied['estimatedTotalBytes'])} "
            f"{done:,} of {total:,} documents  {rates.get('documentsPerSecond', 0):,.0f} documents/s  "
            f"{rates.get('bytesPerSecond', 0) / 1e6:,.1f} MB/s  {_remaining(rates.get('copySecondsRemaining'))}"
        )
        found.append(
            f"follow  {progress.get('eventsApplied', 0):,} events  {rates.get('eventsPerSecond', 0):,.0f} events/s  "
            f"lag {progress.get('lagTimeSeconds', 0)} s"
        )
    if (verified := progress.get("verification")) is not None:
        source = verified["source"]
        result = "equal" if verified["equal"] else f"{verified['mismatches']} differences"
        found.append(
            f"verify  {_bar(source['hashedDocumentCount'], source['estimatedDocumentCount'])} "
            f"{source['hashedDocumentCount']:,} of {source['estimatedDocumentCount']:,} documents  "
            f"{verified['rounds']} rounds  {result}"
        )
    return found


def verify_lines(progress: Mapping[str, Any]) -> list[str]:
    """Format the line of ``sync verify``, for a terminal."""
    done, total = progress["comparedDocuments"], progress["estimatedDocuments"]
    return [
        f"verify  {_bar(done, total)} {done:,} of {total:,} documents  "
        f"{progress['mismatches']} differences  {progress['collection'] or ''}".rstrip()
    ]


def _first(progress: Mapping[str, Any]) -> str:
    if progress.get("error"):
        return str(progress["error"])
    if progress.get("pauseSeconds") is not None:
        return f"writes were blocked for {progress['pauseSeconds']} s"
    return "ready to commit" if progress.get("canCommit") else str(progress.get("info") or "")


def _bar(done: int, total: int) -> str:
    filled = BAR_WIDTH if done >= total else BAR_WIDTH * done // total
    return "█" * filled + "░" * (BAR_WIDTH - filled)


def _remaining(seconds: int | None) -> str:
    return "" if seconds is None else f"{seconds // 60}:{seconds % 60:02} left"
