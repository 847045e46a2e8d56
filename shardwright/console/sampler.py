"""Rates and latencies of the last hour, from the metrics of all daemons."""

import asyncio
import re
import time
import urllib.request
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.client import HTTPException
from typing import Any, Final

from shardwright.console.scrapes import QUANTILES, Durations, Interval, Scrape
from shardwright.console.settings import Target
from shardwright.wire.logger import get_logger

POINTS_MAX: Final = 720
_FETCH_SECONDS_MAX: Final = 2.0
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

_log = get_logger("console.sampler")
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


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
    """

    targets: Sequence[Target]
    seconds: float
    points: deque[Point] = field(default_factory=lambda: deque(maxlen=POINTS_MAX))
    silent: frozenset[str] = frozenset()
    latest: Scrape | None = None

    async def run(self) -> None:
        """Read until cancelled."""
        while self.targets:
            await self.sample()
            await asyncio.sleep(self.seconds)

    async def sample(self) -> None:
        """Read the metrics once."""
        texts = await asyncio.gather(*(asyncio.to_thread(_page, target.address) for target in self.targets))
        pages = {target.process: text for target, text in zip(self.targets, texts, strict=True) if text is not None}
        silent = frozenset(target.process for target in self.targets) - pages.keys()
        if silent != self.silent:
            _log.info("Processes that serve no metrics have changed", silent=sorted(silent))
        now = Scrape.of(time.monotonic(), pages, _WANTED)
        if self.latest is not None:
            self.points.append(_point(Interval(self.latest, now)))
        self.silent, self.latest = silent, now

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


def _page(address: str) -> str | None:
    try:
        with _opener.open(f"http://{address}/metrics", timeout=_FETCH_SECONDS_MAX) as reply:
            text: str = reply.read().decode("utf-8", "replace")
            return text
    except (OSError, HTTPException):
        return None


def _point(interval: Interval) -> Point:
    operations = {
        name: rate
        for name, rate in interval.rates(f"{_ROUTER}operations_total", "command").items()
        if rate and name not in _OWN
    }
    succeeded = interval.rates(f"{_ROUTER}operations_total", "command", outcome="ok")
    durations = interval.durations(f"{_ROUTER}operation_duration_seconds", "command")
    requests = interval.durations(f"{_ROUTER}shard_request_duration_seconds", "shard")
    shard_errors = interval.rates(f"{_ROUTER}shard_errors_total", "shard")
    shard_bytes = interval.rates(f"{_ROUTER}shard_bytes_total", "shard")
    targets = interval.rates(f"{_ROUTER}targeted_operations_total", "target")
    targeted = sum(targets.values())
    everything = Durations()
    for name in operations:
        for bound, count in durations.get(name, Durations()).buckets.items():
            everything.buckets[bound] = everything.buckets.get(bound, 0) + count
    errors = {name: max(0.0, rate - succeeded.get(name, 0)) for name, rate in operations.items()}
    return Point(
        datetime.now(UTC),
        interval.seconds,
        {
            name: {"rate": rate, "errors": errors[name], **_quantiles(durations.get(name, Durations()))}
            for name, rate in operations.items()
        },
        {
            name: {
                "rate": each.count / interval.seconds,
                "errors": shard_errors.get(name, 0),
                "bytes": shard_bytes.get(name, 0),
                **_quantiles(each),
            }
            for name, each in requests.items()
        },
        {"rate": sum(operations.values()), "errors": sum(errors.values()), **_quantiles(everything)},
        (targets.get("allShards", 0) + targets.get("manyShards", 0)) / targeted if targeted else None,
        interval.total(f"{_ROUTER}open_connections"),
        interval.total(f"{_ROUTER}open_cursors"),
        interval.total(f"{_ROUTER}open_transactions"),
    )


def _quantiles(durations: Durations) -> dict[str, float | None]:
    found = ((name, durations.quantile(part)) for name, part in QUANTILES)
    return {name: None if seconds is None else seconds * 1000 for name, seconds in found}
