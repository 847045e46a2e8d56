"""The progress of a replication as documents, with mongosync's names, and as lines for people. Pure."""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final

WINDOW_SECONDS: Final = 10.0
BAR_WIDTH: Final = 32

COPY: Final = "collection copy"
FOLLOW: Final = "change event application"
"""Phases, as ``info`` of mongosync names them."""


def of_copy(ranges: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return ``collectionCopy``, the progress of the copy."""
    return {
        "estimatedTotalBytes": sum(max(each["estimated_bytes"], each["bytes"]) for each in ranges),
        "estimatedCopiedBytes": sum(each["bytes"] for each in ranges),
        "estimatedTotalDocuments": sum(max(each["estimated_documents"], each["documents"]) for each in ranges),
        "copiedDocuments": sum(each["documents"] for each in ranges),
    }


class Rates:
    """Work per second, over the last `WINDOW_SECONDS`."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, Mapping[str, int]]] = deque()

    def note(self, now: float, counts: Mapping[str, int]) -> None:
        """Record counts at a moment."""
        if self._samples and any(counts.get(name, 0) < value for name, value in self._samples[-1][1].items()):
            self._samples.clear()  # the copy was planned again
        self._samples.append((now, dict(counts)))
        while len(self._samples) > 2 and self._samples[1][0] <= now - WINDOW_SECONDS:
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


def of_rates(rates: Rates, copied: Mapping[str, Any], *, is_copied: bool) -> dict[str, Any]:
    """Return ``rates``: work per second, and the remaining time of the copy."""
    left = copied["estimatedTotalBytes"] - copied["estimatedCopiedBytes"]
    return {
        "documentsPerSecond": round(rates.rate("documents"), 1),
        "bytesPerSecond": round(rates.rate("bytes")),
        "eventsPerSecond": round(rates.rate("events"), 1),
        "copySecondsRemaining": 0 if is_copied else rates.seconds_for("bytes", left),
    }


def lines(progress: Mapping[str, Any]) -> list[str]:
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


def of_verify_alone(progress: Mapping[str, Any]) -> list[str]:
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
