"""``shardwright status``, ``ps`` and ``top``: the processes of a cluster, its migrations, its rates and latencies.

``status`` also shows the command to connect. The shard daemons report the migrations and reshardings that are in
progress. ``ps`` shows states, versions, ages and memory. ``top`` reads the metrics that the daemons serve.
"""

import json
import os
import shlex
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from bson.json_util import dumps
from pymongo.errors import PyMongoError

from shardwright.console.metrics import QUANTILES, Durations, Interval, Scrape, quantile_texts
from shardwright.deploy.access import NO_LOG_IN
from shardwright.deploy.balancing import bound_text
from shardwright.deploy.layout import Layout
from shardwright.deploy.mongod import connect
from shardwright.deploy.supervisor import Answer, ask
from shardwright.deploy.topology import ProcessPlan, Role

_MIGRATIONS: Final[list[dict[str, Any]]] = [
    {"$currentOp": {"allUsers": True}},
    {"$match": {"migration": {"$exists": True}}},
]

_RESHARDINGS: Final[list[dict[str, Any]]] = [
    {"$currentOp": {"allUsers": True}},
    {"$match": {"originatingCommand.reshardCollection": {"$exists": True}, "recipientState": {"$exists": True}}},
]

ANSWER_SECONDS: Final = 2.0
"""Seconds within which a process must answer; a paused one is shown without its state, or omitted."""

_UNKNOWN: Final = "no answer"
_STOPPED: Final = "stopped"

_ROUTER: Final = "shardwright_router_"
_CONFIGD: Final = "shardwright_configd_"
_FETCH_SECONDS_MAX: Final = 2.0
_ROWS_MAX: Final = 15
_BEGIN: Final = "\x1b[H\x1b[J"
"""Terminal codes that move the cursor to the upper left corner and clear the screen."""


def cluster_text(document: dict[str, Any]) -> str:
    """Format the document of `status --json` for people."""
    parts = [_process_table(document)]
    if document["migrations"]:
        parts.append("\n".join(map(migration_text, document["migrations"])))
    if document["reshardings"]:
        parts.append("\n".join(map(resharding_text, document["reshardings"])))
    return "\n\n".join([*parts, _what_to_do(document)])


def _what_to_do(document: dict[str, Any]) -> str:
    """Say how to connect, or how to start a router first."""
    layout, processes = Layout(Path(document["dir"])), document["processes"]
    routers = [process for process in processes if process["role"] == Role.ROUTER]
    if any(router["pid"] for router in routers):
        return how_to_connect(document)
    if any(process["pid"] for process in processes):
        return f"no router is running: start one with `{layout.command('restart', routers[0]['name'])}`"
    return f"the cluster is stopped: start it with `{layout.command('up')}`"


def how_to_connect(document: dict[str, Any]) -> str:
    """Return the mongosh command line for the cluster that `LocalCluster.describe` describes."""
    access, tls = document.get("auth"), document.get("tls")
    words = ["mongosh"]
    if access is not None:
        words += ["--username", access["user"]]
    if tls is not None:
        words += ["--tls", "--tlsCAFile", tls["caFile"], "--tlsCertificateKeyFile", tls["clientCertificateFile"]]
    shown = f"connect with: {shlex.join([*words, document['uri']])}"
    if access is None:
        return shown
    place = f"; it is in {access['passwordFile']}" if Path(access["passwordFile"]).exists() else ""
    return f"{shown}\nwhich asks for the password{place}"


def _process_table(document: dict[str, Any]) -> str:
    rows = [("NAME", "ADDRESS", "METRICS", "PID", "LOG")]
    for process in document["processes"]:
        name = process["name"]
        pid = str(process["pid"]) if process["pid"] else "not running"
        rows.append((name, process["address"], document["metrics"].get(name, "-"), pid, process["log"]))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return "\n".join("  ".join([*map(str.ljust, row, widths), row[4]]) for row in rows)


def migrations_under_way(daemons: Iterable[ProcessPlan], log_in: Mapping[str, Any] = NO_LOG_IN) -> list[dict[str, Any]]:
    """Return the active migrations of the given shard daemons, in the order of the daemons.

    Donor and recipient each report ``process``, ``ns``, ``from``, ``to``, ``min``, ``max``, ``step``, ``seconds``,
    ``documents`` (the estimated number in the range), and their own progress: ``state``, ``documentsCloned``,
    ``bytesCloned``, on the donor also ``documentsQueued`` (changed and not transferred yet) and more.
    """
    return _operations(daemons, log_in, _MIGRATIONS, _described_migration)


def _described_migration(process: str, operation: dict[str, Any]) -> dict[str, Any]:
    command = operation["command"]
    return {
        "process": process,
        "ns": operation["ns"],
        "from": command["fromShard"],
        "to": command["toShard"],
        "min": command["min"],
        "max": command["max"],
        "step": operation["msg"],
        "seconds": operation["secs_running"],
        "documents": operation["progress"]["total"],
        **operation["migration"],
    }


def migration_text(migration: dict[str, Any]) -> str:
    """Format a migration in one line."""
    low, high = (bound_text(migration[bound]) for bound in ("min", "max"))
    parts = [
        f"{migration['step']} {migration['state']}".rstrip(),
        f"{migration['documentsCloned']:,} of {migration['documents']:,} documents",
        f"{migration['bytesCloned'] / 1e6:,.1f} MB",
        f"{migration['seconds']} s",
    ]
    if "documentsQueued" in migration:
        parts.insert(3, f"{migration['documentsQueued']:,} changes to transfer")
    route = f"{migration['from']} -> {migration['to']}"
    return f"{migration['process']}: {migration['ns']} [{low}, {high}) {route}: {', '.join(parts)}"


def reshardings_under_way(
    daemons: Iterable[ProcessPlan], log_in: Mapping[str, Any] = NO_LOG_IN
) -> list[dict[str, Any]]:
    """Return each recipient's progress, in the order of the daemons.

    The fields are ``process``, ``ns``, ``key``, ``state``, ``seconds``, ``remainingSeconds`` (-1 if unknown),
    ``documents`` and ``bytes`` (estimated totals to receive), ``documentsCopied``, ``bytesCopied``, ``changesFetched``
    and ``changesApplied``.
    """
    return _operations(daemons, log_in, _RESHARDINGS, _described_resharding)


def _described_resharding(process: str, operation: dict[str, Any]) -> dict[str, Any]:
    return {
        "process": process,
        "ns": operation["ns"],
        "key": operation["originatingCommand"]["key"],
        "state": operation["recipientState"],
        "seconds": operation["totalOperationTimeElapsedSecs"],
        "remainingSeconds": operation["remainingOperationTimeEstimatedSecs"],
        "documents": operation["approxDocumentsToCopy"],
        "documentsCopied": operation["documentsCopied"],
        "bytes": operation["approxBytesToCopy"],
        "bytesCopied": operation["bytesCopied"],
        "changesFetched": operation["oplogEntriesFetched"],
        "changesApplied": operation["oplogEntriesApplied"],
    }


def resharding_text(resharding: dict[str, Any]) -> str:
    """Format one recipient's progress in one line."""
    parts = [
        resharding["state"],
        f"{resharding['documentsCopied']:,} of {resharding['documents']:,} documents",
        f"{resharding['bytesCopied'] / 1e6:,.1f} MB",
        f"{resharding['changesApplied']:,} of {resharding['changesFetched']:,} changes",
        f"{resharding['seconds']} s",
    ]
    if resharding["remainingSeconds"] >= 0:
        parts.append(f"about {resharding['remainingSeconds']} s left")
    return f"{resharding['process']}: resharding {resharding['ns']} by {dumps(resharding['key'])}: {', '.join(parts)}"


def _operations(
    daemons: Iterable[ProcessPlan],
    log_in: Mapping[str, Any],
    pipeline: Sequence[Mapping[str, Any]],
    described: Callable[[str, dict[str, Any]], dict[str, Any]],
) -> list[dict[str, Any]]:
    """Return the operations that a pipeline finds on daemons, in the order of the daemons; silent ones are omitted.

    Args:
        described: makes the document of an operation from the name of its process and the pipeline's output.
    """

    def ask(daemon: ProcessPlan) -> list[dict[str, Any]]:
        with connect(daemon.address, ANSWER_SECONDS, log_in) as client:
            try:
                return [described(daemon.name, operation) for operation in client.admin.aggregate(pipeline)]
            except PyMongoError:
                return []

    daemons = list(daemons)
    with ThreadPoolExecutor(max_workers=len(daemons) or 1) as asking:
        return [operation for found in asking.map(ask, daemons) for operation in found]


def processes_with_states(
    running: Mapping[ProcessPlan, int | None], addresses: Mapping[str, str], log_in: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return a document per process for `shardwright ps`.

    Its fields are ``name``, ``role``, ``pid``, ``state``, ``version``, ``uptimeSeconds`` and ``memoryBytes``. The state
    of a mongod is its member state. The state of a daemon is ``ready`` or the reason why it is not. Unknown values are
    None. A router's memory includes its workers.

    Args:
        running: the pids of processes, None for processes that do not run.
        addresses: the address of each process, by name.
    """
    with ThreadPoolExecutor(max_workers=len(running) or 1) as asking:
        found = [asking.submit(_described, plan, pid, addresses[plan.name], log_in) for plan, pid in running.items()]
        return [each.result() for each in found]


def process_table(processes: list[dict[str, Any]]) -> str:
    """Format the documents of `processes_with_states` for people."""
    rows = [("NAME", "ROLE", "STATE", "VERSION", "UPTIME", "MEMORY", "PID")]
    for each in processes:
        uptime, memory = each["uptimeSeconds"], each["memoryBytes"]
        rows.append(
            (
                each["name"],
                each["role"],
                each["state"],
                each["version"] or "-",
                "-" if uptime is None else duration_text(uptime),
                "-" if memory is None else f"{memory / 2**20:.0f} MiB",
                str(each["pid"] or "-"),
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def duration_text(seconds: float) -> str:
    """Format a duration in its two largest units: ``3d 4h``."""
    units = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))
    rest = int(seconds)
    parts: list[str] = []
    for unit, size in units:
        count, rest = divmod(rest, size)
        if count or parts or unit == "s":
            parts.append(f"{count}{unit}")
    return " ".join(parts[:2])


def _described(plan: ProcessPlan, pid: int | None, address: str, log_in: Mapping[str, Any]) -> dict[str, Any]:
    document: dict[str, Any] = {
        "name": plan.name,
        "role": plan.role.value,
        "pid": pid,
        "state": _STOPPED,
        "version": None,
        "uptimeSeconds": None,
        "memoryBytes": None,
    }
    if pid is None:
        return document
    ask = _state_of_mongod(address, log_in) if plan.role is Role.MONGOD else _state_of_daemon(plan)
    return {**document, **ask, "uptimeSeconds": _uptime(pid), "memoryBytes": _memory(pid)}


def _state_of_mongod(address: str, log_in: Mapping[str, Any]) -> dict[str, Any]:
    with connect(address, ANSWER_SECONDS, log_in) as client:
        try:
            hello = client.admin.command("hello")
            version = client.admin.command("buildInfo")["version"]
        except PyMongoError:
            return {"state": _UNKNOWN}
    if hello.get("isWritablePrimary"):
        return {"state": "PRIMARY", "version": version}
    return {"state": "SECONDARY" if hello.get("secondary") else "NO ROLE", "version": version}


def _state_of_daemon(plan: ProcessPlan) -> dict[str, Any]:
    assert plan.metrics_port is not None
    answer = ask(f"127.0.0.1:{plan.metrics_port}", "/readyz", ANSWER_SECONDS)
    if answer is None:
        return {"state": _UNKNOWN}
    try:
        document = json.loads(answer.text)
    except ValueError:
        return {"state": _UNKNOWN}
    return {"state": document.get("reason") or document.get("status") or _UNKNOWN, "version": answer.version or None}


def _uptime(pid: int) -> float | None:
    """Return the seconds since a process was started."""
    try:
        started_ticks = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
        up = float(Path("/proc/uptime").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return None
    return max(0.0, up - started_ticks / os.sysconf("SC_CLK_TCK"))


def _memory(pid: int) -> int | None:
    """Return the resident memory of a process and its children in bytes."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except (OSError, ValueError, IndexError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE") + sum(_memory(int(child)) or 0 for child in children)


@dataclass(frozen=True, slots=True)
class Fetched:
    """One scrape, and the processes that did not answer."""

    scrape: Scrape
    silent: tuple[str, ...]


def fetch(addresses: Mapping[str, str]) -> Fetched:
    """Read the metrics of processes; ``addresses`` has their ``host:port`` by name."""

    def read(address: str) -> tuple[float, Answer | None]:
        answer = ask(address, "/metrics", _FETCH_SECONDS_MAX)
        return time.monotonic(), answer

    with ThreadPoolExecutor(max_workers=len(addresses) or 1) as asking:
        pages = dict(zip(addresses, asking.map(read, addresses.values()), strict=True))
    texts = {process: answer.text for process, (_, answer) in pages.items() if answer is not None}
    times = {process: at for process, (at, _) in pages.items()}
    silent = tuple(process for process in pages if process not in texts)
    return Fetched(Scrape.of(time.monotonic(), texts, times=times), silent)


def watch(
    addresses: Callable[[], Mapping[str, str]],
    write: Callable[[str], object],
    pause: Callable[[float], object],
    *,
    seconds: float,
    times: int | None,
    is_terminal: bool,
) -> None:
    """Write a screen for each interval, until interrupted.

    Args:
        addresses: returns ``host:port`` of each process's metrics, by its name; called for each screen.
        times: number of screens to write; None for no limit.
        is_terminal: whether each screen replaces the one before.
    """
    before = fetch(addresses())
    written = 0
    while times is None or written < times:
        pause(seconds)
        now = fetch(addresses())
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
    operations = interval.operations().values()
    targets = interval.rates(f"{_ROUTER}targeted_operations_total", "target")
    targeted = sum(targets.values())
    scattered = targets.get("allShards", 0) + targets.get("manyShards", 0)
    share = f"{scattered / targeted:.0%}" if targeted else "-"
    running = any(interval.gauges(f"{_CONFIGD}balancer_running", "").values())
    enabled = any(interval.gauges(f"{_CONFIGD}balancer_enabled", "").values())
    balancer = "running" if running else "on" if enabled else "off"
    return (
        f"{now:%H:%M:%S}  {sum(rate for rate, _ in operations):.0f} operations/s, "
        f"{sum(errors for _, errors in operations):.1f} errors/s, {share} to several shards  |  "
        f"{interval.total(f'{_ROUTER}open_connections'):.0f} connections, "
        f"{interval.total(f'{_ROUTER}open_cursors'):.0f} cursors, "
        f"{interval.total(f'{_ROUTER}open_transactions'):.0f} transactions  |  balancer {balancer}"
    )


def _commands(interval: Interval) -> str:
    operations = interval.operations()
    durations = interval.durations(f"{_ROUTER}operation_duration_seconds", "command")
    busiest = sorted(operations.items(), key=lambda item: (-item[1][0], item[0]))
    rows = [
        (name, f"{rate:.1f}", f"{errors:.1f}", *quantile_texts(durations.get(name, Durations())))
        for name, (rate, errors) in busiest[:_ROWS_MAX]
    ]
    return _table(("COMMAND", "ops/s", "err/s", *_MILLISECONDS), rows or [("(none)", *[""] * 5)])


def _shards(interval: Interval) -> str:
    durations = interval.durations(f"{_ROUTER}shard_request_duration_seconds", "shard")
    requests = interval.rates_of_durations(f"{_ROUTER}shard_request_duration_seconds", "shard")
    errors = interval.rates(f"{_ROUTER}shard_errors_total", "shard")
    transferred = interval.rates(f"{_ROUTER}shard_bytes_total", "shard")
    primaries = interval.gauges(f"{_ROUTER}shard_primary_known", "shard")
    members = interval.gauges(f"{_ROUTER}shard_members", "shard")
    unknown = interval.gauges(f"{_ROUTER}shard_members", "shard", state="unknown")
    chunks = interval.gauges(f"{_CONFIGD}chunks", "shard")
    rows = [
        (
            shard,
            f"{requests.get(shard, 0):.1f}",
            f"{errors.get(shard, 0):.1f}",
            *quantile_texts(durations[shard]),
            f"{transferred.get(shard, 0) / 1e6:.2f}",
            f"{chunks[shard]:.0f}" if shard in chunks else "-",
            "-" if shard not in primaries else "yes" if primaries[shard] else "NO",
            f"{unknown[shard]:.0f}" if shard in unknown else "-",
        )
        # A router keeps the request counts of removed shards, but has gauges of present shards only.
        for shard in sorted(durations.keys() & (primaries.keys() | members.keys()))
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
