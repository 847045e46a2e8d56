"""The view of the whole cluster: its processes, their state, and its problems in words.

All parts are read at the same time. While the config servers do not answer, the list of shards comes from a router or
from the metrics.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from shardwright.console.metrics import Sampler
from shardwright.console.problems import ROUTER_SECONDS_MAX, problems
from shardwright.console.reader import Document, Reader, Refused, Value, partly, set_name
from shardwright.console.settings import Settings, Target

_SECONDS: Final = 4.0
_SIZES_SECONDS: Final = 30.0
_SPARK_POINTS: Final = 120
_COUNTED_AT_A_TIME: Final = 4

COUNTED_MAX: Final = 500
"""Maximum number of databases whose documents are counted. Each one costs a command on all shards."""


async def overview(reader: Reader, sampler: Sampler, settings: Settings) -> dict[str, Any]:
    """Return routers, config servers, shards with their members, rates, and problems in words."""
    return await reader.kept("overview", _SECONDS, lambda: _read(reader, sampler, settings))


async def _read(reader: Reader, sampler: Sampler, settings: Settings) -> dict[str, Any]:
    refusals: list[str] = []
    no_document: Document = {}
    not_read: Document | None = None
    no_counts: dict[str, Counter[str]] = {}
    not_listed: list[Document] | None = None

    def part(
        name: str, read: Callable[[], Awaitable[Value]], fallback: Value, seconds: float = 0.0
    ) -> Awaitable[Value]:
        return partly(reader, ("overview", name), seconds, read, fallback, refusals)

    def listed(collection: str) -> Awaitable[list[Document] | None]:
        async def read() -> list[Document] | None:
            return await reader.find("config", collection, {}, sort=[("_id", 1)])

        return part(collection, read, not_listed)

    if not settings.targets:
        await reader.command({"ping": 1})  # without metrics, there is nothing to show if no router answers
    (shards, routers, version), (monitors, by_shard, balancer, build), (sizes, counts) = await asyncio.gather(
        asyncio.gather(listed("shards"), listed("mongos"), listed("version")),
        asyncio.gather(
            part("monitors", lambda: reader.command({"connPoolStats": 1}), not_read),
            part("map", lambda: reader.command({"getShardMap": 1}), no_document),
            part("balancer", lambda: reader.command({"balancerStatus": 1}), no_document),
            part("build", lambda: reader.command({"buildInfo": 1}), no_document),
        ),
        asyncio.gather(
            part("sizes", lambda: shard_sizes(reader), Sizes({}, {}), _SIZES_SECONDS),
            part("counts", lambda: shard_counts(reader), no_counts, _SIZES_SECONDS),
        ),
    )
    now = datetime.now(UTC)
    hosts: dict[str, str] = dict(by_shard.get("map", {}))
    config_set = set_name(hosts.pop("config", "")) or _replica_sets(settings, "configd", "config")[0]
    members = (monitors or {}).get("replicaSets", {})
    document = {
        "at": now,
        "title": settings.title,
        "clusterId": str(version[0]["clusterId"]) if version and "clusterId" in version[0] else None,
        "version": build.get("version"),
        "balancer": {
            "mode": balancer.get("mode", "unknown"),
            "inRound": balancer.get("inBalancerRound", False),
        },
        "routers": _routers(routers, now, sampler, settings),
        "configServers": {
            "_id": "config",
            "members": _members(members.get(config_set, {}), config_set, "configd", sampler, settings),
        },
        "shards": [
            {
                "_id": shard["_id"],
                "host": shard["host"],
                "draining": bool(shard.get("draining")),
                "zones": shard.get("tags", []),
                "members": _members(members.get(name, {}), name, "shardd", sampler, settings),
                **_EMPTY_SIZES,
                "storageBytes": sizes.stored.get(shard["_id"]),
                **counts.get(name, {}),
                **sizes.disks.get(name, {}),
            }
            for shard in (_known_shards(hosts, settings) if shards is None else shards)
            for name in [set_name(shard["host"])]
        ],
        "rates": rates(sampler),
        "hasMetrics": bool(settings.targets),
        "refusals": refusals,
    }
    facts = {**document, "isListed": shards is not None, "isMonitored": monitors is not None}
    return {**document, "problems": problems(facts, sampler, settings)}


def _replica_sets(settings: Settings, role: str, *default: str) -> list[str]:
    """Return the replica sets of the daemons of one role, or the default without any."""
    return sorted({each.replica_set for each in settings.targets if each.role == role}) or list(default)


def _known_shards(hosts: Mapping[str, str], settings: Settings) -> list[Document]:
    """Return the shards without the config servers: from a router's reply, or else from the metrics."""
    known = hosts or {name: name for name in _replica_sets(settings, "shardd")}
    return [{"_id": name, "host": host} for name, host in sorted(known.items())]


_EMPTY_SIZES: Final = {"documents": None, "bytes": None, "storageBytes": None, "diskUsed": None, "diskTotal": None}


def _routers(
    documents: list[Document] | None, now: datetime, sampler: Sampler, settings: Settings
) -> list[dict[str, Any]]:
    """Return the routers in ``config.mongos``, or routers with metrics while the config servers do not answer."""
    if documents is None:
        names = {each.listens or each.process for each in settings.targets if each.role == "router"}
        return [_router({"_id": name}, now, sampler, settings) for name in sorted(names)]
    found = [_router(each, now, sampler, settings) for each in documents]
    return [each for each in found if each["seenSecondsAgo"] is not None]


def _router(document: Document, now: datetime, sampler: Sampler, settings: Settings) -> dict[str, Any]:
    ping = document.get("ping")
    seconds = max(0.0, (now - ping).total_seconds()) if isinstance(ping, datetime) else None
    target = next((each for each in settings.targets if document["_id"] in (each.listens, each.process)), None)
    has_reported = seconds is not None and seconds < ROUTER_SECONDS_MAX
    return {
        "address": document["_id"],
        "process": None if target is None else target.process,
        "version": document.get("mongoVersion"),
        "upSeconds": document.get("up"),
        "seenSecondsAgo": seconds,
        "isAlive": has_reported if target is None else not _is_silent(target, sampler),
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


class Sizes(NamedTuple):
    """Storage and disks of the shards.

    Attributes:
        stored: the bytes of all databases on disk, by shard.
        disks: ``diskUsed`` and ``diskTotal`` by replica set.
    """

    stored: Mapping[str, int]
    disks: Mapping[str, Document]


async def shard_sizes(reader: Reader) -> Sizes:
    """Return storage and disk of each shard, with two commands for any number of databases."""
    databases = await _databases(reader)
    stored: Counter[str] = Counter()
    for each in databases:
        stored.update({shard: int(size) for shard, size in each.get("shards", {}).items()})
    # A disk is the same in the statistics of all databases.
    stats = await reader.command({"dbStats": 1}, databases[0]["name"] if databases else "admin")
    disks = {
        set_name(host): {"diskUsed": each.get("fsUsedSize"), "diskTotal": each.get("fsTotalSize")}
        for host, each in stats.get("raw", {}).items()
    }
    return Sizes(stored, disks)


async def shard_counts(reader: Reader) -> dict[str, Counter[str]]:
    """Return documents and bytes of each replica set, summed over all databases; empty if there are too many."""
    databases = await _databases(reader)
    limit = asyncio.Semaphore(_COUNTED_AT_A_TIME)
    found: dict[str, Counter[str]] = {}

    async def count(name: str) -> None:
        async with limit:
            try:
                stats = await reader.command({"dbStats": 1}, name)
            except Refused as refused:
                if refused.is_of_rights:
                    return
                raise
        for host, each in stats.get("raw", {}).items():
            counts = {"documents": int(each.get("objects", 0)), "bytes": int(each.get("dataSize", 0))}
            found.setdefault(set_name(host), Counter()).update(counts)

    if len(databases) <= COUNTED_MAX:
        await asyncio.gather(*(count(each["name"]) for each in databases))
    return found


async def _databases(reader: Reader) -> list[Document]:
    listed = await reader.command({"listDatabases": 1})
    return [each for each in listed["databases"] if each["name"] not in ("admin", "config", "local")]


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
