"""``shardwright top``: live rates and latencies of a cluster, from the metrics that its daemons serve."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from shardwright.console.scrapes import QUANTILES, Durations, Interval, Scrape, quantile_texts
from shardwright.deploy.readiness import ask

_ROUTER: Final = "shardwright_router_"
_CONFIGD: Final = "shardwright_configd_"
_FETCH_SECONDS_MAX: Final = 2.0
_ROWS_MAX: Final = 15
_BEGIN: Final = "\x1b[H\x1b[J"
"""Terminal codes that move the cursor to the upper left corner and clear the screen."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """One scrape, and the processes that did not answer."""

    scrape: Scrape
    silent: tuple[str, ...]


def fetch(addresses: Mapping[str, str]) -> Fetched:
    """Read the metrics of processes; ``addresses`` has their ``host:port`` by name."""
    texts, silent = {}, []
    for process, address in addresses.items():
        answer = ask(address, "/metrics", _FETCH_SECONDS_MAX)
        if answer is None:
            silent.append(process)
        else:
            texts[process] = answer.text
    return Fetched(Scrape.of(time.monotonic(), texts), tuple(silent))


def watch(
    addresses: Mapping[str, str],
    write: Callable[[str], object],
    pause: Callable[[float], object],
    *,
    seconds: float,
    times: int | None,
    is_terminal: bool,
) -> None:
    """Write a screen for each interval, until interrupted.

    Args:
        addresses: ``host:port`` of each process's metrics, by its name.
        times: number of screens to write; None for no limit.
        is_terminal: whether each screen replaces the one before.
    """
    before = fetch(addresses)
    written = 0
    while times is None or written < times:
        pause(seconds)
        now = fetch(addresses)
        text = screen(Interval(before.scrape, now.scrape), now.silent, datetime.now())
        write(f"{_BEGIN if is_terminal else ''}{text}\n")
        before, written = now, written + 1


def screen(interval: Interval, silent: Sequence[str], now: datetime) -> str:
    """Format one screen."""
    parts = [_summary(interval, now)]
    if silent:
        parts.append(f"no answer from {', '.join(silent)}")
    parts.append(_commands(interval))
    parts.append(_shards(interval))
    return "\n\n".join(parts)


def _summary(interval: Interval, now: datetime) -> str:
    operations = interval.rate(f"{_ROUTER}operations_total")
    failed = operations - interval.rate(f"{_ROUTER}operations_total", outcome="ok")
    targets = interval.rates(f"{_ROUTER}targeted_operations_total", "target")
    targeted = sum(targets.values())
    scattered = targets.get("allShards", 0) + targets.get("manyShards", 0)
    share = f"{scattered / targeted:.0%}" if targeted else "-"
    running = any(interval.gauges(f"{_CONFIGD}balancer_running", "").values())
    enabled = any(interval.gauges(f"{_CONFIGD}balancer_enabled", "").values())
    balancer = "running" if running else "on" if enabled else "off"
    return (
        f"{now:%H:%M:%S}  {operations:.0f} operations/s, {failed:.1f} errors/s, {share} to several shards  |  "
        f"{interval.total(f'{_ROUTER}open_connections'):.0f} connections, "
        f"{interval.total(f'{_ROUTER}open_cursors'):.0f} cursors, "
        f"{interval.total(f'{_ROUTER}open_transactions'):.0f} transactions  |  balancer {balancer}"
    )


def _commands(interval: Interval) -> str:
    operations = interval.rates(f"{_ROUTER}operations_total", "command")
    succeeded = interval.rates(f"{_ROUTER}operations_total", "command", outcome="ok")
    durations = interval.durations(f"{_ROUTER}operation_duration_seconds", "command")
    busiest = sorted((name for name in operations if operations[name]), key=lambda name: (-operations[name], name))
    rows = [
        (
            name,
            f"{operations[name]:.1f}",
            f"{operations[name] - succeeded.get(name, 0):.1f}",
            *quantile_texts(durations.get(name, Durations())),
        )
        for name in busiest[:_ROWS_MAX]
    ]
    return _table(("COMMAND", "ops/s", "err/s", *_MILLISECONDS), rows or [("(none)", *[""] * 5)])


def _shards(interval: Interval) -> str:
    durations = interval.durations(f"{_ROUTER}shard_request_duration_seconds", "shard")
    errors = interval.rates(f"{_ROUTER}shard_errors_total", "shard")
    transferred = interval.rates(f"{_ROUTER}shard_bytes_total", "shard")
    primaries = interval.gauges(f"{_ROUTER}shard_primary_known", "shard")
    unknown = interval.gauges(f"{_ROUTER}shard_members", "shard", state="unknown")
    chunks = interval.gauges(f"{_CONFIGD}chunks", "shard")
    rows = [
        (
            shard,
            f"{durations[shard].count / interval.seconds:.1f}",
            f"{errors.get(shard, 0):.1f}",
            *quantile_texts(durations[shard]),
            f"{transferred.get(shard, 0) / 1e6:.2f}",
            f"{chunks[shard]:.0f}" if shard in chunks else "-",
            "yes" if primaries.get(shard) else "NO",
            f"{unknown.get(shard, 0):.0f}",
        )
        for shard in sorted(durations)
    ]
    heads = ("SHARD", "req/s", "err/s", *_MILLISECONDS, "MB/s", "chunks", "primary", "members away")
    return _table(heads, rows or [("(none)", *[""] * (len(heads) - 1))])


_MILLISECONDS: Final = tuple(f"{name} ms" for name, _ in QUANTILES)


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Format a table with the first column left-aligned, the numbers right-aligned."""
    lines = [heads, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(heads))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )
