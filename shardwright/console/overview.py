"""The view of the whole cluster: its processes, their state, and problems."""

import asyncio
from datetime import UTC, datetime
from typing import Any, Final

from shardwright.console.problems import problems
from shardwright.console.reader import Reader, Refused, maybe, partly
from shardwright.console.sampler import Sampler
from shardwright.console.settings import Settings, Target

_SECONDS: Final = 4.0
_SIZES_SECONDS: Final = 30.0
_SPARK_POINTS: Final = 120
_DEAD_ROUTER_SECONDS: Final = 60 * 15


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
    seconds = None if ping is None else max(0.0, (now - ping).total_seconds())
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
