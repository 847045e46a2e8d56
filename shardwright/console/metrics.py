"""Rates and latencies of the last hour, from the metrics of all daemons."""

import asyncio
import re
import time
import urllib.request
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import inf
from typing import Any, Final

from shardwright.console.settings import Target, current
from shardwright.wire.logger import get_logger

_log = get_logger("console.metrics")

Labels = frozenset[tuple[str, str]]
Samples = Mapping[tuple[str, Labels], float]

_SAMPLE: Final = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)", re.MULTILINE)
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ESCAPED: Final = re.compile(r"\\(.)")
_ANY: Final = re.compile("")

POINTS_MAX: Final = 720
RATE_SECONDS_MIN: Final = 2.0
"""Minimum time span of a rate. Over a shorter one, single operations would be drawn as peaks."""

PAGE_SECONDS_MAX: Final = 2.0
"""Time within which a process must send its metrics. A paused one is shown without them."""

_READERS_MAX: Final = 256
_PAGE_BYTES_AT_ONCE: Final = 2**16
_ROUTER: Final = "shardwright_router_"
_WANTED: Final = re.compile(
    r"shardwright_\w+?_(operations_total|operation_duration_seconds_bucket|shard_request_duration_seconds_bucket|"
    r"shard_errors_total|shard_bytes_total|targeted_operations_total|open_connections|open_cursors|open_transactions|"
    r"sessions|build_info|member_state|replication_lag_seconds|oplog_window_seconds|certificate_expiry\w*|"
    r"internal_errors_total|orphan_documents|range_deletions_pending|balancer_\w+|shard_data_bytes|shard_members|"
    r"shard_primary_known|resharding_remaining_seconds|donor_\w+|recipient_\w+)$"
    r"|process_(start_time_seconds|resident_memory_bytes|open_fds|max_fds)$"
)
_OWN: Final = frozenset({"hello", "isMaster", "ismaster"})
"""Commands of drivers' monitors, which wait for changes and would hide the latencies of users' operations."""

_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True, slots=True)
class Scrape:
    """The samples of all processes, read at about the same time.

    Attributes:
        at: when all pages had been read.
        samples: by process, then by name and labels.
        times: when the page of each process had been read. A process that is slow to answer delays `at`.
    """

    at: float
    samples: Mapping[str, Samples]
    times: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, at: float, texts: Mapping[str, str], *, times: Mapping[str, float] | None = None) -> "Scrape":
        """Parse the metrics of processes, by their names."""
        return cls(at, {process: dict(_samples(text, _ANY)) for process, text in texts.items()}, times or {})

    def time_of(self, process: str) -> float:
        """Return when the page of a process had been read."""
        return self.times.get(process, self.at)


def _samples(text: str, wanted: re.Pattern[str]) -> Iterator[tuple[tuple[str, Labels], float]]:
    """Yield the samples of a page, in a tenth of the time that the parser of prometheus_client takes."""
    for name, labels, value in _SAMPLE.findall(text):
        if wanted.match(name) is None:
            continue
        found = _LABEL.findall(labels)
        if "\\" in labels:
            found = [(each, _ESCAPED.sub(_unescaped, escaped)) for each, escaped in found]
        yield (name, frozenset(found)), float(value)


def _unescaped(match: re.Match[str]) -> str:
    return "\n" if match[1] == "n" else match[1]


@dataclass(slots=True)
class Durations:
    """Durations between two scrapes.

    Attributes:
        buckets: number of durations up to each bound, in seconds.
    """

    buckets: dict[float, float] = field(default_factory=dict)

    @property
    def count(self) -> float:
        """Number of all durations."""
        return self.buckets.get(inf, 0)

    def quantile(self, part: float) -> float | None:
        """Return a quantile of the durations, interpolated within a bucket; None without durations.

        Args:
            part: the part of the durations that do not exceed the quantile, from 0 to 1.
        """
        rank = part * self.count
        if not self.count:
            return None
        below, low = 0.0, 0.0
        for bound in sorted(self.buckets):
            reached = self.buckets[bound]
            if reached >= rank:
                if bound == inf:
                    return low
                share = 1.0 if reached == below else (rank - below) / (reached - below)
                return low + (bound - low) * share
            below, low = reached, bound
        return low


class Interval:
    """The time between two scrapes of a cluster."""

    def __init__(self, before: Scrape, after: Scrape) -> None:
        self.after = after
        self.seconds = max(after.at - before.at, _SECONDS_MIN)
        self._earlier = dict(_with_earlier(before, after))

    def rates(self, name: str, label: str, **wanted: str) -> dict[str, float]:
        """Return the increase per second of a counter in all processes, by a label.

        Args:
            wanted: values that other labels must have.
        """
        rates: dict[str, float] = {}
        for labels, increase, seconds in self._increases(name):
            if wanted.items() <= labels.items():
                value = labels.get(label, "")
                rates[value] = rates.get(value, 0) + increase / seconds
        return rates

    def rate(self, name: str, **wanted: str) -> float:
        """Return the increase per second of a counter in all processes."""
        return sum(self.rates(name, "", **wanted).values())

    def rates_of_durations(self, name: str, label: str) -> dict[str, float]:
        """Return the number of durations per second in a histogram of all processes, by a label."""
        return self.rates(f"{name}_bucket", label, le="+Inf")

    def operations(self) -> dict[str, tuple[float, float]]:
        """Return the operations of users and their errors per second, by command, for commands that have run."""
        name = f"{_ROUTER}operations_total"
        succeeded = self.rates(name, "command", outcome="ok")
        return {
            command: (rate, max(0.0, rate - succeeded.get(command, 0)))
            for command, rate in self.rates(name, "command").items()
            if rate and command not in _OWN
        }

    def durations(self, name: str, label: str) -> dict[str, Durations]:
        """Return the durations of a histogram in all processes, by a label."""
        found: dict[str, Durations] = {}
        for labels, increase, _ in self._increases(f"{name}_bucket"):
            buckets = found.setdefault(labels.get(label, ""), Durations()).buckets
            bound = float(labels["le"])
            buckets[bound] = buckets.get(bound, 0) + increase
        return found

    def gauges(self, name: str, label: str, **wanted: str) -> dict[str, float]:
        """Return the last values of a gauge, by a label; the largest of several processes."""
        values: dict[str, float] = {}
        for samples in self.after.samples.values():
            for (each, labels), value in samples.items():
                by_name = dict(labels)
                if each == name and wanted.items() <= by_name.items():
                    key = by_name.get(label, "")
                    values[key] = max(value, values.get(key, value))
        return values

    def total(self, name: str) -> float:
        """Return the sum of the last values of a gauge over all processes and labels."""
        return sum(
            value for samples in self.after.samples.values() for (each, _), value in samples.items() if each == name
        )

    def _increases(self, name: str) -> Iterator[tuple[dict[str, str], float, float]]:
        """Yield the labels of a counter, its increase in each process, and the seconds between the process's pages."""
        for process, (earlier, seconds) in self._earlier.items():
            for (each, labels), value in self.after.samples[process].items():
                if each == name:
                    yield dict(labels), value - earlier.get((each, labels), 0), seconds


def _with_earlier(before: Scrape, after: Scrape) -> Iterator[tuple[str, tuple[Samples, float]]]:
    """Yield each process with its earlier samples, empty after a restart, and the seconds between its two pages.

    A process that missed the earlier scrape is omitted: its counts would cover more than the interval.
    """
    for process, samples in after.samples.items():
        earlier = before.samples.get(process)
        if earlier is not None:
            seconds = max(after.time_of(process) - before.time_of(process), _SECONDS_MIN)
            yield process, ({} if _has_restarted(earlier, samples) else earlier, seconds)


def _has_restarted(earlier: Samples, later: Samples) -> bool:
    """Whether a process counts from 0 again. Its counters may have passed their former values since the restart."""
    if earlier.get(_STARTED) != later.get(_STARTED):
        return True
    return any(value < earlier.get(key, 0) for key, value in later.items() if key[0].endswith(_COUNTED))


_STARTED: Final = ("process_start_time_seconds", Labels())
_COUNTED: Final = ("_total", "_bucket", "_count", "_sum")
_SECONDS_MIN: Final = 1e-9


QUANTILES: Final[Sequence[tuple[str, float]]] = (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))


def quantile_texts(durations: Durations) -> Iterable[str]:
    """Format the quantiles of durations in milliseconds."""
    for _, part in QUANTILES:
        seconds = durations.quantile(part)
        yield "-" if seconds is None else f"{seconds * 1000:.1f}"


@dataclass(frozen=True, slots=True)
class Point:
    """The cluster during one interval.

    Attributes:
        commands: by command: operations and errors per second, and quantiles in milliseconds.
        shards: the same for requests to each shard.
        total: of all commands.
        scattered: share of the targeted operations that several shards received; None without any.
    """

    at: datetime
    seconds: float
    commands: Mapping[str, Mapping[str, float | None]]
    shards: Mapping[str, Mapping[str, float | None]]
    total: Mapping[str, float | None]
    scattered: float | None
    connections: float
    cursors: float
    transactions: float


@dataclass(slots=True)
class Sampler:
    """Reads the metrics of all targets at intervals.

    Attributes:
        points: the last hour, at the default interval.
        silent: processes that did not answer the last time.
        latest: the last scrape.
    """

    targets: Sequence[Target]
    seconds: float
    points: deque[Point] = field(default_factory=lambda: deque(maxlen=POINTS_MAX))
    silent: frozenset[str] = frozenset()
    latest: Scrape | None = None
    _recent: deque[Scrape] = field(default_factory=deque)

    async def run(self) -> None:
        """Read until cancelled."""
        while self.targets:
            try:
                await self.sample()
            except Exception as error:
                _log.exception("Could not evaluate the metrics of the daemons", raised=error)
            await asyncio.sleep(self.seconds)

    async def sample(self) -> None:
        """Read the metrics once."""
        loop = asyncio.get_running_loop()
        targets = await asyncio.to_thread(current, self.targets)
        # Not the loop's executor: the driver resolves names in it, and frozen processes would occupy its threads.
        readers = ThreadPoolExecutor(min(len(targets), _READERS_MAX) or 1, "metrics")
        reading = (loop.run_in_executor(readers, _page, target.address) for target in targets)
        try:
            # The timeout of a socket applies to each step, and name resolution has none.
            pages = await asyncio.gather(
                *(asyncio.wait_for(each, PAGE_SECONDS_MAX) for each in reading), return_exceptions=True
            )
        finally:
            readers.shutdown(wait=False, cancel_futures=True)
        samples, times, failures = {}, {}, {}
        for target, page in zip(targets, pages, strict=True):
            if isinstance(page, BaseException):
                failures[target.process] = str(page) or type(page).__name__
            else:
                times[target.process], samples[target.process] = page
        if failures.keys() != self.silent:
            _log.info("Processes that serve no metrics have changed", silent=failures)
        self.silent = frozenset(failures)
        self.note(Scrape(time.monotonic(), samples, times))

    def note(self, scrape: Scrape) -> None:
        """Add a scrape, and a point with the rates since the last one at least `RATE_SECONDS_MIN` ago, or the first."""
        recent = self._recent
        while len(recent) > 1 and scrape.at - recent[1].at >= RATE_SECONDS_MIN:
            recent.popleft()
        if recent:
            self.points.append(_point(Interval(recent[0], scrape)))
        recent.append(scrape)
        self.latest = scrape

    def values(self, process: str) -> dict[str, float]:
        """Return the last values of a process's metrics without labels, by the part of the name after the daemon's."""
        found: dict[str, float] = {}
        for (name, labels), value in self._samples(process).items():
            if not labels:
                found[name.removeprefix("shardwright_").partition("_")[2] if "shardwright" in name else name] = value
        return found

    def labelled(self, process: str, ending: str, label: str) -> dict[str, float]:
        """Return the last values of one metric of a process by one of its labels."""
        return {
            dict(labels).get(label, ""): value
            for (name, labels), value in self._samples(process).items()
            if name.endswith(ending)
        }

    def _samples(self, process: str) -> Mapping[tuple[str, Any], float]:
        return {} if self.latest is None else self.latest.samples.get(process, {})


def _page(address: str) -> tuple[float, Samples]:
    """Return the metrics of a process, after the time when they had been read; a failure may raise any exception."""
    deadline = time.monotonic() + PAGE_SECONDS_MAX
    parts = []
    with _opener.open(f"http://{address}/metrics", timeout=PAGE_SECONDS_MAX) as reply:
        while part := reply.read1(_PAGE_BYTES_AT_ONCE):
            parts.append(part)
            if time.monotonic() > deadline:
                raise TimeoutError("timed out")
    at = time.monotonic()
    return at, dict(_samples(b"".join(parts).decode("utf-8", "replace"), _WANTED))


def _point(interval: Interval) -> Point:
    operations = interval.operations()
    durations = interval.durations(f"{_ROUTER}operation_duration_seconds", "command")
    requests = interval.durations(f"{_ROUTER}shard_request_duration_seconds", "shard")
    request_rates = interval.rates_of_durations(f"{_ROUTER}shard_request_duration_seconds", "shard")
    shard_errors = interval.rates(f"{_ROUTER}shard_errors_total", "shard")
    shard_bytes = interval.rates(f"{_ROUTER}shard_bytes_total", "shard")
    targets = interval.rates(f"{_ROUTER}targeted_operations_total", "target")
    targeted = sum(targets.values())
    everything = Durations()
    for name in operations:
        for bound, count in durations.get(name, Durations()).buckets.items():
            everything.buckets[bound] = everything.buckets.get(bound, 0) + count
    return Point(
        datetime.now(UTC),
        interval.seconds,
        {
            name: {"rate": rate, "errors": errors, **_quantiles(durations.get(name, Durations()))}
            for name, (rate, errors) in operations.items()
        },
        {
            name: {
                "rate": request_rates.get(name, 0),
                "errors": shard_errors.get(name, 0),
                "bytes": shard_bytes.get(name, 0),
                **_quantiles(each),
            }
            for name, each in requests.items()
        },
        {
            "rate": sum(rate for rate, _ in operations.values()),
            "errors": sum(errors for _, errors in operations.values()),
            **_quantiles(everything),
        },
        (targets.get("allShards", 0) + targets.get("manyShards", 0)) / targeted if targeted else None,
        interval.total(f"{_ROUTER}open_connections"),
        interval.total(f"{_ROUTER}open_cursors"),
        interval.total(f"{_ROUTER}open_transactions"),
    )


def _quantiles(durations: Durations) -> dict[str, float | None]:
    found = ((name, durations.quantile(part)) for name, part in QUANTILES)
    return {name: None if seconds is None else seconds * 1000 for name, seconds in found}
