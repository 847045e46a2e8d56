"""``serverStatus``, ``getDiagnosticData`` and ``connPoolStats``: counters and state of this router process.

``dropConnections`` closes the router's connections to other servers.
"""

import os
import resource
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from time import time
from typing import Any, Final

from bson.int64 import Int64

from shardwright.daemon.operation_metrics import UNKNOWN_COMMAND
from shardwright.router.context.options import MONGODB_VERSION
from shardwright.router.context.router_context import RouterContext
from shardwright.router.operations.operation import Operation
from shardwright.router.processes.siblings import tell_siblings
from shardwright.router.replies.reply_builder import Reply
from shardwright.sharding.cluster_time import unpack_timestamp
from shardwright.wire.arguments import Arguments
from shardwright.wire.host_and_port import HostAndPort
from shardwright.wire.transport.monitor import ReplicaSetMonitor
from shardwright.wire.transport.pool import PoolStatistics

_POOL: Final = "NetworkInterfaceTL-TaskExecutorPool-0"
"""The name of a mongos's first pool. This router has one pool for each host."""


async def conn_pool_stats(operation: Operation) -> Reply:
    """The connections of this process to other servers, and the replica sets that it follows."""
    return pool_statistics(operation.context)


def pool_statistics(context: RouterContext) -> dict[str, Any]:
    """Return the reply to ``connPoolStats``."""
    hosts = {address: pool for address, pool in context.pools.statistics().items() if not address.startswith("/")}
    total = _numbers(hosts.values())
    monitors = _monitors(context)
    return {
        "numClientConnections": 0,
        "numAScopedConnections": 0,
        **{f"total{name[0].upper()}{name[1:]}": number for name, number in total.items()},
        "pools": {
            _POOL: {
                **{f"pool{name[0].upper()}{name[1:]}": number for name, number in total.items()},
                **_by_host(hosts),
            }
        },
        "hosts": _by_host(hosts),
        "numReplicaSetMonitorsCreated": len(monitors),
        "replicaSets": {monitor.set_name: monitor.description() for monitor in monitors},
    }


async def drop_connections(operation: Operation) -> Reply:
    """Closes the connections to the named hosts that no operation is using, in all processes of this router."""
    addresses = _addresses(operation)
    for address in addresses:
        operation.context.pools.close_idle(address)
    dropping = {"dropConnections": 1, "hostAndPort": addresses}
    await tell_siblings(operation.context, operation.request, dropping)
    return {}


def _addresses(operation: Operation) -> list[str]:
    """Return the hosts in a command."""
    arguments = Arguments.of(operation.request)
    return [str(HostAndPort.parse(text)) for text in arguments.strings(b"hostAndPort")]


def _monitors(context: RouterContext) -> list[ReplicaSetMonitor]:
    return [context.catalog.client.monitor, *(shard.client.monitor for shard in context.shards.known())]


def _numbers(pools: Iterable[PoolStatistics]) -> dict[str, int]:
    """Add up the ``connPoolStats`` numbers of pools. Broken connections are closed, so none is ever refreshed."""
    statistics = list(pools)
    return {
        "inUse": sum(each.in_use for each in statistics),
        "available": sum(each.available for each in statistics),
        "created": sum(each.created for each in statistics),
        "refreshing": 0,
        "refreshed": 0,
    }


def _by_host(hosts: Mapping[str, PoolStatistics]) -> dict[str, Any]:
    return {address: _numbers([pool]) for address, pool in sorted(hosts.items())}


_COUNTED: Final = {"query": "find", "getmore": "getMore"}
"""Commands with an operation counter of their own. Writes have one too, but count statements."""

_KINDS_OF_BLOCKED: Final = {"insert": "Inserts", "find": "Queries", "update": "Updates", "delete": "Deletes"}
"""Commands with a counter of their own among operations that waited for a routing table."""

_HEDGING: Final = ("numTotalOperations", "numTotalHedgedOperations", "numAdvantageouslyHedgedOperations")

_TLS_VERSIONS: Final = ("1.0", "1.1", "1.2", "1.3")
_OTHER_VERSION: Final = "unknown"

_UNINITIALIZED_TERM: Final = -1
"""Placeholder for the term: a router has only the cluster time of the config servers."""


_NOT_DIAGNOSTIC: Final = frozenset({"defaultRWConcern", "sharding"})
"""Sections of ``serverStatus`` that MongoDB does not collect as diagnostic data."""


async def server_status(operation: Operation) -> Reply:
    """Counters and gauges of this router process."""
    # As on a mongod, {<name>: 0} leaves a section out, but no section can be requested alone.
    return _server_status(operation.context, lambda name: operation.argument(name.encode(), True) not in (0, False))


async def get_diagnostic_data(operation: Operation) -> Reply:
    """Statistics as MongoDB collects them each second, taken when they are requested."""
    context, start = operation.context, datetime.now(UTC)
    status = _server_status(context, lambda name: name not in _NOT_DIAGNOSTIC)
    sections = {
        name: {"start": start, **section, "ok": 1.0, "end": datetime.now(UTC)}
        for name, section in (("serverStatus", status), ("connPoolStats", pool_statistics(context)))
    }
    return {"data": {"start": start, **sections, "end": datetime.now(UTC)}}


def _server_status(context: RouterContext, is_wanted: Callable[[str], bool]) -> dict[str, Any]:
    sections: dict[str, Any] = {
        "asserts": _asserts(context),
        "connections": _connections(context),
        **({"defaultRWConcern": context.default_concerns.report} if context.default_concerns.report else {}),
        "extra_info": _resources(),
        # The router does not hedge reads.
        "hedgingMetrics": dict.fromkeys(_HEDGING, Int64(0)),
        "logicalSessionRecordCache": context.session_jobs.document(len(context.sessions)),
        "network": _network(context),
        "opcounters": _opcounters(context),
        "security": {"authentication": context.log_ins.counts.document()},
        "sharding": _sharding(context),
        "shardingStatistics": _sharding_statistics(context),
        "transactions": context.transactions.document(),
        "transportSecurity": _transport_security(context),
        "mem": {"bits": 64, **_memory_mb(), "supported": True},
        "metrics": {"commands": _commands(context), "cursor": _cursors(context), "query": _queries(context)},
    }
    uptime = time() - context.started
    return {
        "host": context.options.address,
        "version": MONGODB_VERSION,
        "process": "mongos",
        "pid": Int64(os.getpid()),
        "uptime": float(int(uptime)),
        "uptimeMillis": Int64(uptime * 1000),
        "uptimeEstimate": Int64(uptime),
        "localTime": datetime.now(UTC),
        **{name: section for name, section in sections.items() if is_wanted(name)},
    }


def _asserts(context: RouterContext) -> dict[str, int]:
    failed = sum(each.failures for each in context.metrics.operations.statistics().values())
    return {"regular": 0, "warning": 0, "msg": 0, "user": failed, "tripwire": 0, "rollovers": 0}


def _queries(context: RouterContext) -> dict[str, Int64]:
    # MongoDB's code calls an update that is not a replacement "op style".
    return {"updateOneOpStyleBroadcastWithExactIDCount": Int64(context.target_counts.updates_by_id)}


def _connections(context: RouterContext) -> dict[str, Any]:
    connections = context.clients.statistics()
    if connections is None:
        return {}
    return {
        "current": connections.current,
        "available": connections.available,
        "totalCreated": connections.created,
        "active": connections.active,
        "threaded": connections.current,  # as mongos, which has a thread for each connection
        "exhaustIsMaster": connections.streamed_is_masters,
        "exhaustHello": connections.streamed_hellos,
        "awaitingTopologyChanges": context.quiesce.waiting,
    }


def _network(context: RouterContext) -> dict[str, Int64]:
    """Return traffic counters. The bytes are counted on TCP connections, as sent and received."""
    received, sent = context.clients.traffic()
    requests = sum(each.count for each in context.metrics.operations.statistics().values())
    shown = {"bytesIn": received, "bytesOut": sent, "physicalBytesIn": received, "physicalBytesOut": sent}
    return {name: Int64(count) for name, count in {**shown, "numRequests": requests}.items()}


def _transport_security(context: RouterContext) -> dict[str, Int64]:
    counts = Counter(dict.fromkeys((*_TLS_VERSIONS, _OTHER_VERSION), 0))
    for name, count in context.clients.tls_versions().items():
        version = name.removeprefix("TLSv")
        counts[version if version in _TLS_VERSIONS else _OTHER_VERSION] += count
    return {version: Int64(count) for version, count in counts.items()}


def _opcounters(context: RouterContext) -> dict[str, Int64]:
    counts = {name: each.count for name, each in context.metrics.operations.statistics().items()}
    writes = {kind.command: number for kind, number in context.statement_counts.items()}
    reads = {name: counts.get(each, 0) for name, each in _COUNTED.items()}
    others = {*writes, *_COUNTED.values(), UNKNOWN_COMMAND}
    rest = sum(number for name, number in counts.items() if name not in others)
    shown = {
        "insert": writes["insert"],
        "query": reads["query"],
        "update": writes["update"],
        "delete": writes["delete"],
        "getmore": reads["getmore"],
        "command": rest,
    }
    return {name: Int64(count) for name, count in shown.items()}


def _commands(context: RouterContext) -> dict[str, Any]:
    """Return the number of runs and failures of each command."""
    counts = context.metrics.operations.statistics()
    shown: dict[str, Any] = {"<UNKNOWN>": Int64(counts[UNKNOWN_COMMAND].count if UNKNOWN_COMMAND in counts else 0)}
    for name in sorted(context.commands.names):
        total, failed = (counts[name].count, counts[name].failures) if name in counts else (0, 0)
        shown[name] = {"failed": Int64(failed), "total": Int64(total)}
    return shown


def _sharding(context: RouterContext) -> dict[str, Any]:
    return {
        "configsvrConnectionString": context.catalog.client.monitor.connection_string,
        "lastSeenConfigServerOpTime": {
            "ts": unpack_timestamp(context.clock.time.config_time),
            "t": Int64(_UNINITIALIZED_TERM),
        },
        "maxChunkSizeInBytes": Int64(context.chunk_bytes_max),
    }


def _sharding_statistics(context: RouterContext) -> dict[str, Any]:
    cache, statistics = context.routing, context.routing.statistics
    waited = statistics.operations_that_waited
    blocked = {f"count{name}": waited[command] for command, name in _KINDS_OF_BLOCKED.items()}
    rest = waited.total() - sum(blocked.values())
    return {
        "numHostsTargeted": context.target_counts.document(),
        "catalogCache": {
            "numDatabaseEntries": Int64(len(cache.databases)),
            "numCollectionEntries": Int64(len(cache.collections)),
            "countStaleConfigErrors": Int64(statistics.stale_config_errors),
            "totalRefreshWaitTimeMicros": Int64(statistics.refresh_seconds * 1e6),
            "numActiveIncrementalRefreshes": Int64(statistics.active_incremental_refreshes),
            "countIncrementalRefreshesStarted": Int64(statistics.incremental_refreshes),
            "numActiveFullRefreshes": Int64(statistics.active_full_refreshes),
            "countFullRefreshesStarted": Int64(statistics.full_refreshes),
            "countFailedRefreshes": Int64(statistics.failed_refreshes),
            "operationsBlockedByRefresh": {
                name: Int64(count)
                for name, count in {"countAllOperations": waited.total(), **blocked, "countCommands": rest}.items()
            },
        },
    }


def _cursors(context: RouterContext) -> dict[str, Any]:
    statistics = context.cursors.statistics()
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


def _memory_mb() -> dict[str, int]:
    with open("/proc/self/statm", encoding="ascii") as statm:
        virtual, resident, *_ = statm.read().split()
    return {
        name: int(pages) * resource.getpagesize() >> 20
        for name, pages in (("resident", resident), ("virtual", virtual))
    }
