"""The view of the whole cluster: its processes, their state, and its problems in words.

Problems are the findings of `doctor` and the alerts that can be detected by a client.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeAlias

from shardwright.console.metrics import Sampler
from shardwright.console.reader import Reader, Refused, maybe, partly
from shardwright.console.settings import Settings, Target

_SECONDS: Final = 4.0
_SIZES_SECONDS: Final = 30.0
_SPARK_POINTS: Final = 120
_DEAD_ROUTER_SECONDS: Final = 60 * 15

ROUTER_SECONDS_MAX: Final = 90
LAG_SECONDS_MAX: Final = 30
OPLOG_SECONDS_MIN: Final = 3600 * 24
DISK_WARNING: Final = 0.85
DISK_ERROR: Final = 0.95
CERTIFICATE_DAYS_MIN: Final = 30
ERROR_SHARE_MAX: Final = 0.05
UPTIME_FOR_OPLOG: Final = 3600 * 24

Problem: TypeAlias = dict[str, str]
Document: TypeAlias = Mapping[str, Any]
_Check: TypeAlias = Callable[[Document, Sampler, Settings], Iterator[tuple[str, str, str, str]]]


async def overview(reader: Reader, sampler: Sampler, settings: Settings) -> dict[str, Any]:
    """Return routers, config servers, shards with their members, rates, and problems in words."""
    return await reader.kept("overview", _SECONDS, lambda: _read(reader, sampler, settings))


async def _read(reader: Reader, sampler: Sampler, settings: Settings) -> dict[str, Any]:
    refusals: list[str] = []
    shards, routers, monitors, balancer, build, version = await asyncio.gather(
        maybe(reader.find("config", "shards", {}, sort=[("_id", 1)]), [], refusals),
        maybe(reader.find("config", "mongos", {}, sort=[("_id", 1)]), [], refusals),
        maybe(reader.command({"connPoolStats": 1}), {}, refusals),
        maybe(reader.command({"balancerStatus": 1}), {}, refusals),
        reader.command({"buildInfo": 1}),
        maybe(reader.find("config", "version", {}, limit=1), [], refusals),
    )
    no_sizes: dict[str, dict[str, Any]] = {}
    sizes = await partly(reader, "sizes", _SIZES_SECONDS, lambda: shard_sizes(reader), no_sizes, refusals)
    now = datetime.now(UTC)
    members = monitors.get("replicaSets", {})
    document = {
        "at": now,
        "title": settings.title,
        "clusterId": str(version[0]["clusterId"]) if version and "clusterId" in version[0] else None,
        "version": build["version"],
        "balancer": {
            "mode": balancer.get("mode", "unknown"),
            "inRound": balancer.get("inBalancerRound", False),
        },
        "routers": [
            found for each in routers if (found := _router(each, now, sampler, settings))["seenSecondsAgo"] is not None
        ],
        "configServers": {
            "_id": "config",
            "members": _members(members.get("config", {}), "config", "configd", sampler, settings),
        },
        "shards": [
            {
                "_id": shard["_id"],
                "host": shard["host"],
                "draining": bool(shard.get("draining")),
                "zones": shard.get("tags", []),
                "members": _members(members.get(shard["_id"], {}), shard["_id"], "shardd", sampler, settings),
                **_EMPTY_SIZES,
                **sizes.get(shard["_id"], {}),
            }
            for shard in shards
        ],
        "rates": rates(sampler),
        "hasMetrics": bool(settings.targets),
        "refusals": refusals,
    }
    return {**document, "problems": problems(document, sampler, settings)}


_EMPTY_SIZES: Final = {"documents": None, "bytes": None, "storageBytes": None, "diskUsed": None, "diskTotal": None}


def _router(document: dict[str, Any], now: datetime, sampler: Sampler, settings: Settings) -> dict[str, Any]:
    ping = document.get("ping")
    seconds = max(0.0, (now - ping).total_seconds()) if isinstance(ping, datetime) else None
    target = next((each for each in settings.targets if each.listens == document["_id"]), None)
    return {
        "address": document["_id"],
        "process": None if target is None else target.process,
        "version": document.get("mongoVersion"),
        "upSeconds": document.get("up"),
        "seenSecondsAgo": seconds,
        "isAlive": seconds is not None and seconds < _DEAD_ROUTER_SECONDS and not _is_silent(target, sampler),
        **_process(target, sampler),
    }


def _is_silent(target: Target | None, sampler: Sampler) -> bool:
    return target is not None and target.process in sampler.silent


def _members(
    monitored: dict[str, Any], replica_set: str, role: str, sampler: Sampler, settings: Settings
) -> list[dict[str, Any]]:
    """Return a replica set's members from the router's monitor and the daemons' metrics."""
    targets = [each for each in settings.targets if each.replica_set == replica_set and each.role == role]
    by_address = {each.listens: each for each in targets if each.listens}
    hosts = {each["addr"]: each for each in monitored.get("hosts", [])}
    members = []
    for address in sorted(hosts.keys() | by_address.keys()):
        host, target = hosts.get(address), by_address.get(address)
        members.append(
            {
                "address": address,
                "process": None if target is None else target.process,
                "state": _state(host, target, sampler),
                "pingMillis": None if host is None else host.get("pingTimeMillis"),
                **_process(target, sampler),
            }
        )
    # Targets from a file lack the addresses that clients use.
    members += [
        {
            "address": each.process,
            "process": each.process,
            "state": _state(None, each, sampler),
            "pingMillis": None,
            **_process(each, sampler),
        }
        for each in targets
        if not each.listens and not hosts
    ]
    return members


def _state(host: dict[str, Any] | None, target: Target | None, sampler: Sampler) -> str:
    if _is_silent(target, sampler) and (host is None or not host.get("ok")):
        return "down"
    if target is not None:
        for state, value in sampler.labelled(target.process, "_member_state", "state").items():
            if value and not _is_silent(target, sampler):
                return state
    if host is None:
        return "unknown"
    if not host.get("ok"):
        return "down"
    return "primary" if host.get("ismaster") else "secondary"


def _process(target: Target | None, sampler: Sampler) -> dict[str, Any]:
    """Return the data in the metrics of a process."""
    if target is None or target.process in sampler.silent or sampler.latest is None:
        return {
            "daemonVersion": None,
            "startedAt": None,
            "lagSeconds": None,
            "oplogWindowSeconds": None,
            "memoryBytes": None,
            "connections": None,
            "certificateExpires": None,
        }
    values = sampler.values(target.process)
    started, expires = values.get("process_start_time_seconds"), values.get("certificate_expiry_timestamp_seconds")
    return {
        "daemonVersion": next(iter(sampler.labelled(target.process, "_build_info", "version")), None),
        "startedAt": None if started is None else datetime.fromtimestamp(started, UTC),
        "lagSeconds": values.get("replication_lag_seconds"),
        "oplogWindowSeconds": values.get("oplog_window_seconds"),
        "memoryBytes": values.get("process_resident_memory_bytes"),
        "connections": values.get("open_connections"),
        "certificateExpires": None if not expires else datetime.fromtimestamp(expires, UTC),
    }


async def shard_sizes(reader: Reader) -> dict[str, dict[str, Any]]:
    """Return documents, bytes and disk of each shard, summed over all databases."""
    listed = await reader.command({"listDatabases": 1, "nameOnly": True})
    names = [each["name"] for each in listed["databases"] if each["name"] not in ("admin", "config", "local")]
    found: dict[str, dict[str, Any]] = {}
    for name in names:
        try:
            stats = await reader.command({"dbStats": 1}, name)
        except Refused as refused:
            if refused.is_of_rights:
                continue
            raise
        for host, each in stats.get("raw", {}).items():
            sizes = found.setdefault(
                host.partition("/")[0],
                {"documents": 0, "bytes": 0, "storageBytes": 0, "diskUsed": None, "diskTotal": None},
            )
            sizes["documents"] += int(each.get("objects", 0))
            sizes["bytes"] += int(each.get("dataSize", 0))
            sizes["storageBytes"] += int(each.get("totalSize", 0))
            sizes["diskUsed"], sizes["diskTotal"] = each.get("fsUsedSize"), each.get("fsTotalSize")
    return found


def rates(sampler: Sampler) -> dict[str, Any] | None:
    """Return the latest rates and the last minutes as lists for sparklines; None without metrics."""
    if not sampler.points:
        return None
    latest = sampler.points[-1]
    recent = list(sampler.points)[-_SPARK_POINTS:]
    return {
        "at": latest.at,
        **{name: latest.total[name] for name in ("rate", "errors", "p50", "p95", "p99")},
        "scattered": latest.scattered,
        "connections": latest.connections,
        "history": {
            "at": [each.at for each in recent],
            "rate": [each.total["rate"] for each in recent],
            "p99": [each.total["p99"] for each in recent],
        },
    }


def problems(document: Document, sampler: Sampler, settings: Settings) -> list[Problem]:
    """Return all problems, the worst first: ``severity``, ``where``, ``what`` and ``mend``."""
    found = [
        {"severity": severity, "where": where, "what": what, "mend": mend}
        for check in _CHECKS
        for severity, where, what, mend in check(document, sampler, settings)
    ]
    return sorted(found, key=lambda each: (_SEVERITIES.index(each["severity"]), each["where"]))


_SEVERITIES: Final = ("error", "warning", "info")


def _sets(document: Document) -> Iterator[tuple[str, list[Document]]]:
    for each in (document["configServers"], *document["shards"]):
        yield each["_id"], each["members"]


def _processes(document: Document) -> Iterator[tuple[str, Document]]:
    for router in document["routers"]:
        yield router["address"], router
    for _, members in _sets(document):
        for member in members:
            yield member["address"], member


def _no_primary(document: Document, _sampler: Sampler, _settings: Settings) -> Iterator[tuple[str, str, str, str]]:
    for name, members in _sets(document):
        if members and not any(each["state"] == "primary" for each in members):
            yield (
                "error",
                name,
                f"no router knows a primary of {name}",
                "writes to it fail: start its members or their daemons, a majority of them at least",
            )


def _unhealthy_members(
    document: Document, _sampler: Sampler, _settings: Settings
) -> Iterator[tuple[str, str, str, str]]:
    for name, members in _sets(document):
        for each in members:
            if each["state"] in ("down", "unknown", "recovering", "rollback", "removed", "startup", "startup2"):
                yield (
                    "error" if each["state"] in ("down", "unknown") else "warning",
                    each["address"],
                    f"the member of {name} is in state {each['state']}",
                    "start it or look at its log: the next failure may leave the set without a majority",
                )


def _late_routers(document: Document, _sampler: Sampler, _settings: Settings) -> Iterator[tuple[str, str, str, str]]:
    for each in document["routers"]:
        if not each["isAlive"] or each["seenSecondsAgo"] > ROUTER_SECONDS_MAX:
            yield (
                "warning",
                each["address"],
                f"the router reported last {each['seenSecondsAgo']:.0f} seconds ago",
                "start it, or ignore this if it was removed",
            )


def _lag(document: Document, _sampler: Sampler, _settings: Settings) -> Iterator[tuple[str, str, str, str]]:
    for where, each in _processes(document):
        lag = each.get("lagSeconds")
        if lag is not None and lag > LAG_SECONDS_MAX:
            yield (
                "warning",
                where,
                f"the member is {lag:.0f} seconds behind its primary",
                "majority writes wait and reads from it are old: look at its disk, its network and its load",
            )


def _disks(document: Document, _sampler: Sampler, _settings: Settings) -> Iterator[tuple[str, str, str, str]]:
    for each in document["shards"]:
        if each["diskTotal"]:
            used = each["diskUsed"] / each["diskTotal"]
            if used > DISK_WARNING:
                yield (
                    "error" if used > DISK_ERROR else "warning",
                    each["_id"],
                    f"the disk of the primary is {used:.0%} full",
                    "add a shard, remove data, or enlarge the disk",
                )


def _certificates(document: Document, _sampler: Sampler, _settings: Settings) -> Iterator[tuple[str, str, str, str]]:
    for where, each in _processes(document):
        expires = each.get("certificateExpires")
        if expires is not None and expires - document["at"] < timedelta(days=CERTIFICATE_DAYS_MIN):
            is_over = expires < document["at"]
            days = abs((expires - document["at"]).days)
            yield (
                "error" if is_over else "warning",
                where,
                f"the certificate expired {days} days ago" if is_over else f"the certificate expires in {days} days",
                "replace the file and run rotateCertificates",
            )


def _versions(document: Document, _sampler: Sampler, _settings: Settings) -> Iterator[tuple[str, str, str, str]]:
    found: dict[str, list[str]] = {}
    for where, each in _processes(document):
        if each.get("daemonVersion"):
            found.setdefault(each["daemonVersion"], []).append(where)
    if len(found) > 1:
        yield (
            "warning",
            "cluster",
            "processes run different versions: " + "; ".join(f"{name} at {len(each)}" for name, each in found.items()),
            "finish the upgrade",
        )


def _silent(_document: Document, sampler: Sampler, settings: Settings) -> Iterator[tuple[str, str, str, str]]:
    for target in settings.targets:
        if target.process in sampler.silent:
            yield (
                "error",
                target.process,
                f"its metrics at {target.address} do not answer",
                "the process has ended or hangs: look at its log, and restart it",
            )


def _internal_errors(_document: Document, sampler: Sampler, settings: Settings) -> Iterator[tuple[str, str, str, str]]:
    for target in settings.targets:
        count = sampler.values(target.process).get("internal_errors_total", 0)
        if count:
            yield (
                "warning",
                target.process,
                f"{count:.0f} internal errors since it started",
                "a bug: keep the log with its traceback, and report it",
            )


def _failing_operations(
    document: Document, _sampler: Sampler, _settings: Settings
) -> Iterator[tuple[str, str, str, str]]:
    rates = document["rates"]
    if rates and rates["rate"] and rates["errors"] / rates["rate"] > ERROR_SHARE_MAX:
        yield (
            "warning",
            "operations",
            f"{rates['errors'] / rates['rate']:.0%} of all operations fail",
            "look at Operations for the commands, and at the routers' logs for the reasons",
        )


def _balancer(document: Document, _sampler: Sampler, _settings: Settings) -> Iterator[tuple[str, str, str, str]]:
    if document["balancer"]["mode"] == "off":
        yield "info", "balancer", "the balancer is off", "start it on the page Balancer if that is not on purpose"


def _draining(document: Document, _sampler: Sampler, _settings: Settings) -> Iterator[tuple[str, str, str, str]]:
    is_off = document["balancer"]["mode"] == "off"
    for each in document["shards"]:
        if each["draining"]:
            yield (
                "warning" if is_off else "info",
                each["_id"],
                "the shard is being drained" + (", which waits for the balancer" if is_off else ""),
                "start the balancer" if is_off else "run removeShard again to see what remains",
            )


_CHECKS: Final[tuple[_Check, ...]] = (
    _no_primary,
    _unhealthy_members,
    _silent,
    _late_routers,
    _lag,
    _disks,
    _certificates,
    _versions,
    _internal_errors,
    _failing_operations,
    _balancer,
    _draining,
)
