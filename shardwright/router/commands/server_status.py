"""``serverStatus``: what this router process has done and is doing."""

import os
import resource
from datetime import UTC, datetime
from time import time
from typing import Any, Final

from bson.int64 import Int64

from shardwright.router.operation import Operation
from shardwright.router.registry import Reply, command
from shardwright.router.router import Router
from shardwright.router.version import MONGODB_VERSION

_OPCOUNTERS: Final = {
    "insert": ("insert",),
    "query": ("find",),
    "update": ("update",),
    "delete": ("delete",),
    "getmore": ("getMore",),
}


@command("serverStatus")
async def server_status(operation: Operation) -> Reply:
    """Counters and gauges of this router process."""
    router = operation.router
    sections: dict[str, Any] = {
        "asserts": _asserts(router),
        "connections": _connections(router),
        "extra_info": _resources(),
        "logicalSessionRecordCache": {"activeSessionsCount": 0},
        "network": {"numRequests": Int64(sum(each.count for each in router.metrics.operations.statistics().values()))},
        "opcounters": _opcounters(router),
        "sharding": _sharding(router),
        "shardingStatistics": _sharding_statistics(router),
        "mem": {"bits": 64, "resident": _resident_mb(), "supported": True},
        "metrics": {"cursor": _cursors(router)},
    }
    uptime = time() - router.started
    # A section is left out with {<name>: 0} and cannot be asked for alone, as on a mongod.
    wanted = {
        name: value for name, value in sections.items() if operation.argument(name.encode(), True) not in (0, False)
    }
    return {
        "host": router.options.address,
        "version": MONGODB_VERSION,
        "process": "mongos",
        "pid": Int64(os.getpid()),
        "uptime": float(int(uptime)),
        "uptimeMillis": Int64(uptime * 1000),
        "uptimeEstimate": Int64(uptime),
        "localTime": datetime.now(UTC),
        **wanted,
    }


def _asserts(router: Router) -> dict[str, int]:
    failed = sum(
        count
        for each in router.metrics.operations.statistics().values()
        for outcome, count in each.outcomes.items()
        if outcome != "ok"
    )
    return {"regular": 0, "warning": 0, "msg": 0, "user": failed, "tripwire": 0, "rollovers": 0}


def _connections(router: Router) -> dict[str, Any]:
    server = router.server
    if server is None:
        return {}
    current = len(server.clients)
    return {
        "current": current,
        "available": server.connections_max - current,
        "totalCreated": Int64(server.connections_created),
        "rejected": Int64(server.connections_refused),
        "active": sum(client.is_busy for client in server.clients),
    }


def _opcounters(router: Router) -> dict[str, Int64]:
    counts = {name: each.count for name, each in router.metrics.operations.statistics().items()}
    known = {name: sum(counts.get(each, 0) for each in commands) for name, commands in _OPCOUNTERS.items()}
    known["command"] = sum(counts.values()) - sum(known.values())
    return {name: Int64(count) for name, count in known.items()}


def _sharding(router: Router) -> dict[str, Any]:
    return {"configsvrConnectionString": router.catalog.client.monitor.connection_string}


def _sharding_statistics(router: Router) -> dict[str, Any]:
    cache, statistics = router.routing, router.routing.statistics
    return {
        "catalogCache": {
            "numDatabaseEntries": Int64(len(cache.databases)),
            "numCollectionEntries": Int64(len(cache.collections)),
            "countStaleConfigErrors": Int64(statistics.stale_config_errors),
            "totalRefreshWaitTimeMicros": Int64(statistics.refresh_seconds * 1e6),
            "countIncrementalRefreshesStarted": Int64(statistics.incremental_refreshes),
            "countFullRefreshesStarted": Int64(statistics.full_refreshes),
            "countFailedRefreshes": Int64(statistics.failed_refreshes),
        }
    }


def _cursors(router: Router) -> dict[str, Any]:
    statistics = router.cursors.statistics()
    return {
        "timedOut": Int64(statistics.timed_out),
        "totalOpened": Int64(statistics.opened),
        "open": {
            "noTimeout": Int64(statistics.open_no_timeout),
            "pinned": Int64(statistics.open_pinned),
            "multiTarget": Int64(statistics.open_multiple_shards),
            "singleTarget": Int64(statistics.open_single_shard),
            "total": Int64(statistics.open_total),
        },
    }


def _resources() -> dict[str, Any]:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "note": "fields vary by platform",
        "user_time_us": Int64(usage.ru_utime * 1e6),
        "system_time_us": Int64(usage.ru_stime * 1e6),
        "maximum_resident_set_kb": Int64(usage.ru_maxrss),
        "page_faults": Int64(usage.ru_majflt),
        "voluntary_context_switches": Int64(usage.ru_nvcsw),
        "involuntary_context_switches": Int64(usage.ru_nivcsw),
    }


def _resident_mb() -> int:
    with open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize() >> 20
