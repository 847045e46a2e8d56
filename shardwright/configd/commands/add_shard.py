"""``_configsvrAddShard``: make a replica set a shard of the cluster."""

from typing import Any, Final
from uuid import uuid4

import trio

from shardwright.configd.catalog.transactions import Transaction
from shardwright.configd.commands.cluster_settings import settings
from shardwright.configd.commands.command_registry import config_command
from shardwright.configd.commands.operation import Operation
from shardwright.configd.primary.locks import ADDING_SHARDS, CLUSTER_SETTINGS
from shardwright.configd.primary.primary import Primary
from shardwright.configd.shards.shard_candidate import (
    check_daemon,
    check_databases,
    check_hello,
    check_locality,
    find_existing,
    shard_name,
)
from shardwright.configd.shards.shard_clients import handshake
from shardwright.daemon.sidecar.user_write_block import Phase, UserWriteBlock
from shardwright.sharding.catalog.database_entry import DatabaseEntry
from shardwright.sharding.catalog.shard_entry import ShardEntry
from shardwright.sharding.versions import DatabaseVersion
from shardwright.wire.connection_string import ConnectionString
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.logger import get_logger
from shardwright.wire.transport.client import Connection
from shardwright.wire.transport.replica_set import ReplicaSetClient

logger = get_logger("configd.add_shard")

_HOST_SECONDS: Final = 2.0
"""How long a host has to answer before the next one is asked."""

_MAJORITY: Final = {"w": "majority"}


@config_command("_configsvrAddShard")
async def add_shard(operation: Operation) -> dict[str, Any]:
    """Check the replica set, send it its identity as a shard, and insert it into the catalog.

    The insertion is the last step: if an attempt fails earlier, the next one repeats everything, and the shard accepts
    the same identity again.

    Raises:
        CommandError: FailedToParse, Overflow, BadValue, IllegalOperation, OperationFailed, HostUnreachable,
            FailedToSatisfyReadPreference.
    """
    target = ConnectionString.parse(operation.subject)
    name = operation.arguments.maybe_string(b"name")
    check_locality(target, operation.primary.config_servers())
    if name == "":
        raise CommandError(ErrorCode.BadValue, "shard name cannot be empty")
    max_size = operation.arguments.value(b"maxSize")
    primary = operation.primary
    # One at a time: two candidates may have a database of the same name.
    async with primary.locks.hold(ADDING_SHARDS, CLUSTER_SETTINGS):
        shards = await primary.catalog.shards()
        existing = find_existing(target, name, max_size, shards)
        if existing is not None:
            return {"shardAdded": existing.id}
        await _check_host(target)
        async with primary.shards.candidate(target) as client:
            whole = await _check_set(primary, client, target)
            find_existing(whole, name, max_size, shards)
            shard = ShardEntry(shard_name(whole, name), str(whole), max_size=max_size)
            if any(shard.id == other.id for other in shards):
                raise CommandError(ErrorCode.OperationFailed, f"a shard named {shard.id} already exists")
            databases = await _check_databases(primary, client, whole)
            await _identify(primary, client, shard)
            for setting in await settings(primary):
                await _ask(primary, client, setting)
            await _block_user_writes(primary, client)
        await _enter(primary, shard, databases)
        primary.shard_hosts.follow(shard)
    await operation.log_changes("addShard", "", {"name": shard.id, "host": shard.host})
    return {"shardAdded": shard.id}


async def _check_host(target: ConnectionString) -> None:
    """Refuse what the hello of the first host that answers rules out, without waiting for a primary.

    A host that is given without its replica set is refused in any case, for the reason found in its hello.
    """
    for address in target.addresses:
        try:
            with trio.fail_after(_HOST_SECONDS):
                connection = await Connection.open(address, handshake=handshake())
        except (BackendError, trio.TooSlowError) as error:
            if not target.set_name:
                raise CommandError(ErrorCode.HostUnreachable, str(error) or f"{address} does not answer") from error
            continue
        connection.close()
        check_daemon(target, address, connection.hello)
        if not target.set_name:
            check_hello(target, connection.hello)
        return


async def _check_set(primary: Primary, client: ReplicaSetClient, target: ConnectionString) -> ConnectionString:
    return check_hello(target, await _ask(primary, client, {"hello": 1}))


async def _check_databases(primary: Primary, client: ReplicaSetClient, target: ConnectionString) -> list[str]:
    reply = await _ask(primary, client, {"listDatabases": 1, "nameOnly": True})
    entries = await primary.catalog.find("databases", {})
    primaries = {entry["_id"]: entry["primary"] for entry in entries}
    return check_databases(target, (database["name"] for database in reply["databases"]), primaries)


async def _identify(primary: Primary, client: ReplicaSetClient, shard: ShardEntry) -> None:
    """Send the set its identity as a shard.

    Its own collection of sessions is dropped, because a cluster keeps sessions in one sharded collection.
    """
    try:
        await _ask(primary, client, {"drop": "system.sessions", "writeConcern": _MAJORITY}, db="config")
    except CommandError as error:
        if error.code != ErrorCode.NamespaceNotFound:
            raise
    identity = {
        "shardName": shard.id,
        "clusterId": primary.catalog.cluster_id,
        "configsvrConnectionString": str(primary.config_servers()),
    }
    await _ask(primary, client, {"_addShard": 1, "shardIdentity": identity, "writeConcern": _MAJORITY})


async def _block_user_writes(primary: Primary, client: ReplicaSetClient) -> None:
    """Have the new shard block the writes of users just as the cluster does."""
    command = {"_shardsvrSetUserWriteBlockMode": 1, "writeConcern": _MAJORITY}
    for phase in Phase:
        await _ask(primary, client, {**command, "global": False, "phase": str(phase)})
    for phase in await UserWriteBlock(primary.catalog.mongod).phases():
        await _ask(primary, client, {**command, "global": True, "phase": str(phase)})


async def _enter(primary: Primary, shard: ShardEntry, databases: list[str]) -> None:
    timestamp = await primary.catalog.now()
    entries = [
        DatabaseEntry(name, shard.id, DatabaseVersion(uuid4(), timestamp, 1)).to_document() for name in databases
    ]
    document = {**shard.to_document(), "topologyTime": timestamp}

    async def insert(transaction: Transaction) -> None:
        # The results of the earlier checks must still hold.
        for collection, entry in [("shards", document), *(("databases", entry) for entry in entries)]:
            if await transaction.find_one(collection, {"_id": entry["_id"]}) is not None:
                raise CommandError(
                    ErrorCode.OperationFailed, f"{entry['_id']} was added to config.{collection} meanwhile"
                )
            transaction.put(collection, [entry])

    await primary.catalog.transaction(insert)
    logger.info("Added a shard", shard=shard.id, host=shard.host, databases=databases)


async def _ask(
    primary: Primary, client: ReplicaSetClient, command: dict[str, Any], *, db: str = "admin"
) -> dict[str, Any]:
    """Run a command on the set, but not in a later term, when it may be a shard and know newer settings.

    Raises:
        CommandError: it failed, or the set could not be reached; InterruptedDueToReplStateChange, the term is over.
    """
    await primary.shards.check_term()
    try:
        return await client.command(db, command)
    except BackendError as error:
        raise CommandError(ErrorCode.HostUnreachable, str(error)) from error
