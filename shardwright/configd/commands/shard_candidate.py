"""Conditions for a replica set to become a shard, on its hello and its databases. No I/O."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from shardwright.daemon.sidecar.member_addresses import SET_UP_ERROR
from shardwright.sharding.catalog.documents import ShardEntry
from shardwright.sharding.feature_version import knows
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.host_and_port import ConnectionString

DATABASES_OF_EVERY_SHARD: Final = frozenset({"admin", "config", "local"})


def check_locality(target: ConnectionString, config_servers: ConnectionString) -> None:
    """Refuse with InvalidOptions a mixture of loopback and other addresses: loopback differs between machines."""
    is_local = all(host.is_localhost for host in config_servers.hosts)
    for host in target.hosts:
        if host.is_localhost != is_local:
            raise CommandError(
                ErrorCode.InvalidOptions,
                "Can't use localhost as a shard since all shards need to communicate. Either use all shards and"
                f" configdbs in localhost or all in actual IPs. host: {host} isLocalHost:{int(host.is_localhost)}",
            )


def find_existing(
    target: ConnectionString, name: str | None, max_size: int | None, shards: Iterable[ShardEntry]
) -> ShardEntry | None:
    """Return the existing shard if a request is repeated; None for a new one.

    Raises:
        CommandError: IllegalOperation, the set or one of its hosts already belongs to a different shard; FailedToParse,
            the entry of a shard names no hosts.
    """
    for shard in shards:
        known = shard.connection_string
        if target.set_name == known.set_name:
            if (name is not None and name != shard.id) or max_size != shard.max_size:
                raise CommandError(
                    ErrorCode.IllegalOperation, f"A shard already exists containing the replica set '{known.set_name}'"
                )
            return shard
        for host in target.hosts:
            if host in known.hosts:
                raise CommandError(
                    ErrorCode.IllegalOperation,
                    f"'{host}' is already a member of the existing shard '{shard.host}' ({shard.id}).",
                )
    return None


def check_daemon(target: ConnectionString, address: str, hello: Mapping[str, Any], feature_version: int) -> None:
    """Refuse a server that is not a shard daemon, or that cannot serve its replica set.

    Raises OperationFailed or IncompatibleServerVersion.
    """
    if hello.get("msg") == "isdbgrid" or "configsvr" in hello:
        return  # `check_hello` refuses both with MongoDB's texts
    if "extensions" not in hello:
        raise _failed(
            f"cannot add {target} as a shard: {address} is not a shard daemon; give the addresses of the daemons "
            "(shardwright-shardd) that run in front of the mongods of the set"
        )
    if SET_UP_ERROR in hello:
        raise _failed(f"cannot add {target} as a shard: {hello[SET_UP_ERROR]}")
    if not knows(hello["extensions"], feature_version):
        raise CommandError(
            ErrorCode.IncompatibleServerVersion,
            f"cannot add {target} as a shard: the daemon {address} does not know the cluster's feature version "
            f"{feature_version}; install the release of the other daemons there",
        )


def check_hello(target: ConnectionString, hello: Mapping[str, Any]) -> ConnectionString:
    """Return the connection string with all hosts that the set's primary reports.

    Raises IllegalOperation or OperationFailed if this replica set cannot become a shard.
    """
    if hello.get("msg") == "isdbgrid":
        raise CommandError(ErrorCode.IllegalOperation, f"cannot add a mongos as a shard: {target}")
    if "configsvr" in hello:
        raise _failed(f"Cannot add {target} as a shard since it is a config server")
    set_name = hello.get("setName")
    if not set_name:
        if target.set_name:
            raise _failed("host did not return a set name; is the replica set still initializing?")
        raise _failed(f"{target} is not a member of a replica set; a shard has to be one")
    if not target.set_name:
        raise _failed(f"host is part of set {set_name}; use replica set url format <setname>/<server1>,<server2>, ...")
    if set_name != target.set_name:
        raise _failed(f"the provided connection string ({target}) does not match the actual set name {set_name}")
    members = [*hello.get("hosts", ()), *hello.get("passives", ()), *hello.get("arbiters", ())]
    for address in target.addresses:
        if address not in members:
            raise _failed(
                f"in seed list {target}, host {address} does not belong to replica set {set_name}; its members are"
                f" {', '.join(members)}"
            )
    return ConnectionString.of_set(set_name, hello["hosts"])


def shard_name(target: ConnectionString, name: str | None) -> str:
    """Return the name of the new shard: the requested one, or its replica set's. Raises BadValue."""
    chosen = target.set_name if name is None else name
    if not chosen:
        raise CommandError(ErrorCode.BadValue, "shard name cannot be empty")
    if chosen == "config":
        raise CommandError(ErrorCode.BadValue, "use of shard replica set with name 'config' is not allowed")
    return chosen


def check_databases(target: ConnectionString, found: Iterable[str], primaries: Mapping[str, str]) -> list[str]:
    """Return the databases that the candidate adds to the cluster.

    Raises OperationFailed if the cluster already has one of them.
    """
    brought = [name for name in found if name not in DATABASES_OF_EVERY_SHARD]
    for name in brought:
        if name in primaries:
            raise _failed(
                f"can't add shard '{target}' because a local database '{name}' exists in another {primaries[name]}"
            )
    return brought


def _failed(message: str) -> CommandError:
    return CommandError(ErrorCode.OperationFailed, message)
