"""``connPoolStats`` and ``dropConnections``: the router's connections to other servers."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from shardwright.router.commands.command_registry import command
from shardwright.router.context.router_context import RouterContext
from shardwright.router.operations.operation import Operation
from shardwright.router.processes.siblings import tell_siblings
from shardwright.router.replies.own_reply import Reply
from shardwright.wire.arguments import Arguments
from shardwright.wire.discovery.server import Server, ServerType
from shardwright.wire.host_and_port import HostAndPort
from shardwright.wire.transport.monitor import ReplicaSetMonitor
from shardwright.wire.transport.pool import PoolStatistics

_POOL: Final = "NetworkInterfaceTL-TaskExecutorPool-0"
"""The name of a mongos's first pool; this router has only one for each host."""


@command("connPoolStats", aliases=("connpoolstats",))
async def conn_pool_stats(operation: Operation) -> Reply:
    """The connections of this process to other servers, and the replica sets that it follows."""
    return pool_statistics(operation.context)


def pool_statistics(context: RouterContext) -> dict[str, Any]:
    """The reply to ``connPoolStats``."""
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
        "replicaSets": {monitor.set_name: {"hosts": _members(monitor)} for monitor in monitors},
    }


@command("dropConnections", admin_only=True, arguments=("hostAndPort",))
async def drop_connections(operation: Operation) -> Reply:
    """Closes the connections to the named hosts that no operation is using, in all processes of this router."""
    addresses = _addresses(operation)
    for address in addresses:
        operation.context.pools.close_idle(address)
    dropping = {"dropConnections": 1, "hostAndPort": addresses}
    await tell_siblings(operation.context, operation.request, dropping)
    return {}


def _addresses(operation: Operation) -> list[str]:
    """The hosts in a command.

    Raises:
        CommandError: 40414, TypeMismatch, FailedToParse.
    """
    arguments = Arguments.of(operation.request)
    return [str(HostAndPort.parse(text)) for text in arguments.strings(b"hostAndPort")]


def _monitors(context: RouterContext) -> list[ReplicaSetMonitor]:
    return [context.catalog.client.monitor, *(shard.client.monitor for shard in context.shards.known())]


def _numbers(pools: Iterable[PoolStatistics]) -> dict[str, int]:
    """The sum of what connPoolStats shows of pools. Connections are never refreshed: broken ones are closed."""
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


def _members(monitor: ReplicaSetMonitor) -> list[dict[str, Any]]:
    return [_member(server) for _, server in sorted(monitor.members.items())]


def _member(server: Server) -> dict[str, Any]:
    known = server.type in (ServerType.PRIMARY, ServerType.SECONDARY, ServerType.ARBITER, ServerType.OTHER)
    return {
        "addr": server.address,
        "ok": known,
        "ismaster": server.type is ServerType.PRIMARY,
        "hidden": False,
        "secondary": server.type is ServerType.SECONDARY,
        "pingTimeMillis": int((server.round_trip_seconds or 0) * 1000),
        **({"tags": dict(server.tags)} if server.tags else {}),
    }
