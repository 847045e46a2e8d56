"""Adding a replica set as a shard, and draining and removing one.

A shard is not removed while others wait for its unfinished work. A shard without chunks and databases may still have to
deliver a decision. It may owe participants the commit of a transaction, the recipient of its last chunk the outcome of
the migration, or other shards the end of a DDL operation. Or it waits for a decision itself: about a rename, or about a
chunk that it receives. A removed shard does not get the decision, so it would wait forever if it was added again. A
shard that receives a database by movePrimary has no record of that. The copied part would become a database of the
cluster when the shard was added again.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final
from uuid import uuid4

import trio
from bson.int64 import Int64

from shardwright.configd.catalog.catalog import read_feature_version
from shardwright.configd.catalog.transactions import Transaction
from shardwright.configd.commands.cluster_settings import settings
from shardwright.configd.commands.operation import Operation
from shardwright.configd.commands.shard_candidate import (
    check_daemon,
    check_databases,
    check_hello,
    check_locality,
    find_existing,
    shard_name,
)
from shardwright.configd.term.shard_clients import ShardClients, handshake
from shardwright.configd.term.term import ADDING_SHARDS, CLUSTER_SETTINGS, REMOVING_SHARDS, Term
from shardwright.daemon.sidecar.user_write_block import Phase, UserWriteBlock
from shardwright.daemon.survey import ask_members
from shardwright.sharding.catalog.documents import DatabaseEntry, ShardEntry
from shardwright.sharding.versions import DatabaseVersion
from shardwright.wire.error_codes import Category, ErrorCode, has_category
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.host_and_port import ConnectionString
from shardwright.wire.logger import get_logger
from shardwright.wire.transport.client import Connection
from shardwright.wire.transport.replica_set import ReplicaSetClient
from shardwright.wire.transport.transport import Transport

logger = get_logger("configd.shards")

_HOST_SECONDS: Final = 2.0
"""Time limit for a host's answer before the next host is tried."""

_MAJORITY: Final = {"w": "majority"}

_CHANGES: Final = "system.sharding_ddl_coordinators"

_UNFINISHED: Final[Mapping[str, Mapping[str, Any]]] = {
    "transaction_coordinators": {},
    "migrationCoordinators": {},
    "migrationRecipients": {},
    "rangeDeletions": {"pending": True},  # ranges that are being received
    _CHANGES: {},
    "localRenameParticipants": {},
    "collection_critical_sections": {},
    "localReshardingOperations.donor": {},
    "localReshardingOperations.recipient": {},
}
"""By collection in a shard's database ``config``, the query for the shard's unfinished work."""


async def add_shard(operation: Operation) -> dict[str, Any]:
    """Check the replica set, send it its identity as a shard, and insert it into the catalog.

    The insertion is the last step. If an attempt fails earlier, the next one repeats everything, and the shard accepts
    the same identity again.

    Raises:
        CommandError: FailedToParse, Overflow, BadValue, IllegalOperation, OperationFailed, HostUnreachable,
            FailedToSatisfyReadPreference; IncompatibleServerVersion or NodeNotFound, a member of the set does not
            support the cluster's feature version, or cannot be asked.
    """
    target = ConnectionString.parse(operation.subject)
    name = operation.arguments.maybe_string(b"name")
    check_locality(target, operation.term.config_servers())
    if name == "":
        raise CommandError(ErrorCode.BadValue, "shard name cannot be empty")
    max_size = operation.arguments.maybe_integer(b"maxSize")
    primary = operation.term
    # One at a time: two candidates may have a database of the same name.
    async with primary.locks.hold(ADDING_SHARDS, CLUSTER_SETTINGS):
        shards = await primary.catalog.shards()
        existing = find_existing(target, name, max_size, shards)
        if existing is not None:
            return {"shardAdded": existing.id}
        feature_version = await read_feature_version(primary.catalog.mongod)
        await _check_host(primary.shards.transport, target, feature_version)
        async with primary.shards.candidate(target) as client:
            whole = await _check_set(primary, client, target)
            await _check_members(primary.shards.transport, whole, feature_version)
            find_existing(whole, name, max_size, shards)
            shard = ShardEntry(shard_name(whole, name), str(whole), max_size=max_size)
            if any(shard.id == other.id for other in shards):
                raise CommandError(ErrorCode.OperationFailed, f"a shard named {shard.id} already exists")
            databases = await _check_databases(primary, client, whole)
            await _identify(primary, client, shard)
            for setting in await settings(primary):
                await _ask(primary, client, setting)
            await _block_user_writes(primary, client)
        async with operation.committing():
            await _enter(primary, shard, databases)
            primary.shard_hosts.follow(shard)
            await operation.log_changes("addShard", "", {"name": shard.id, "host": shard.host})
    return {"shardAdded": shard.id}


async def _check_host(transport: Transport, target: ConnectionString, feature_version: int) -> None:
    """Check the hello of the first host that answers, without waiting for a primary.

    A host given without its replica set is always refused, with the reason found in its hello.
    """
    for address in target.addresses:
        try:
            with trio.fail_after(_HOST_SECONDS):
                connection = await Connection.open(transport, address, handshake=handshake())
        except (BackendError, trio.TooSlowError) as error:
            if not target.set_name:
                raise CommandError(ErrorCode.HostUnreachable, str(error) or f"{address} does not answer") from error
            continue
        connection.close()
        check_daemon(target, address, connection.hello, feature_version)
        if not target.set_name:
            check_hello(target, connection.hello)
        return


async def _check_set(term: Term, client: ReplicaSetClient, target: ConnectionString) -> ConnectionString:
    return check_hello(target, await _ask(term, client, {"hello": 1}))


async def _check_members(transport: Transport, whole: ConnectionString, feature_version: int) -> None:
    """Check the daemons of all members, also of hidden ones.

    A member that does not answer may be of a release that does not check the feature version itself.
    """
    for member in await ask_members(transport, [whole], handshake):
        if member.failure:
            raise CommandError(
                ErrorCode.NodeNotFound,
                f"cannot add {whole} as a shard: its member {member.address} cannot be asked for the feature versions "
                f"that it knows ({member.failure}); start its daemon, or remove it from the set",
            )
        check_daemon(whole, member.address, member.hello, feature_version)


async def _check_databases(term: Term, client: ReplicaSetClient, target: ConnectionString) -> list[str]:
    reply = await _ask(term, client, {"listDatabases": 1, "nameOnly": True})
    entries = await term.catalog.find("databases", {})
    primaries = {entry["_id"]: entry["primary"] for entry in entries}
    return check_databases(target, (database["name"] for database in reply["databases"]), primaries)


async def _identify(term: Term, client: ReplicaSetClient, shard: ShardEntry) -> None:
    """Send the set its identity as a shard.

    Its own collection of sessions is dropped, because a cluster keeps sessions in one sharded collection.
    """
    try:
        await _ask(term, client, {"drop": "system.sessions", "writeConcern": _MAJORITY}, db="config")
    except CommandError as error:
        if error.code != ErrorCode.NamespaceNotFound:
            raise
    identity = {
        "shardName": shard.id,
        "clusterId": term.catalog.cluster_id,
        "configsvrConnectionString": str(term.config_servers()),
    }
    await _ask(term, client, {"_addShard": 1, "shardIdentity": identity, "writeConcern": _MAJORITY})


async def _block_user_writes(term: Term, client: ReplicaSetClient) -> None:
    """Set the cluster's user write block on the new shard."""
    command = {"_shardsvrSetUserWriteBlockMode": 1, "writeConcern": _MAJORITY}
    for phase in Phase:
        await _ask(term, client, {**command, "global": False, "phase": str(phase)})
    for phase in await UserWriteBlock(term.catalog.mongod).phases():
        await _ask(term, client, {**command, "global": True, "phase": str(phase)})


async def _enter(term: Term, shard: ShardEntry, databases: list[str]) -> None:
    timestamp = await term.catalog.now()
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

    await term.catalog.transaction(insert)
    logger.info("Added a shard", shard=shard.id, host=shard.host, databases=databases)


async def _ask(term: Term, client: ReplicaSetClient, command: dict[str, Any], *, db: str = "admin") -> dict[str, Any]:
    """Run a command on the set, unless the term is over: later the set may be a shard with newer settings."""
    await term.shards.check_term()
    try:
        return await client.command(db, command)
    except BackendError as error:
        raise CommandError(ErrorCode.HostUnreachable, str(error)) from error


_NOTE: Final = "you need to drop or movePrimary these databases"


async def remove_shard(operation: Operation) -> dict[str, Any]:
    """Start draining a shard, or report its remaining data, or remove it if none remains.

    The command is repeated until the shard is removed.

    Raises:
        CommandError: ShardNotFound; IllegalOperation, it is the last shard; ZoneStillInUse, it is the only shard of a
            zone that has ranges.
    """
    shard_id, primary = operation.subject, operation.term
    shard = await primary.catalog.shard(shard_id)
    may_be_finished = False
    if shard.is_draining and not _is_anything_left(await _remaining(operation, shard_id)):
        # Before the locks are held, because a shard that does not answer must not block moves of other shards'
        # databases.
        may_be_finished = await _is_finished(operation, shard)
    async with operation.committing(REMOVING_SHARDS, "zones"):
        shard = await primary.catalog.shard(shard_id)
        if not shard.is_draining:
            await primary.catalog.transaction(lambda transaction: _begin(transaction, shard_id))
            await operation.log_changes("removeShard.start", "", {"shard": shard_id})
            logger.info("A shard is draining", shard=shard_id)
            primary.balancer_rounds.want_next()
            return {
                "msg": "draining started successfully",
                "state": "started",
                "shard": shard_id,
                **await _databases(operation, shard_id),
            }
        remaining = await _remaining(operation, shard_id)
        if _is_anything_left(remaining) or not may_be_finished:
            return {
                "msg": "draining ongoing",
                "state": "ongoing",
                "remaining": remaining,
                **await _databases(operation, shard_id),
            }
        time = await primary.catalog.now()
        await primary.catalog.transaction(lambda transaction: _remove(transaction, shard_id, time))
        primary.shard_hosts.forget(shard_id)
        primary.shards.forget(shard_id)
        await operation.log_changes("removeShard", "", {"shard": shard_id})
    logger.info("A shard was removed", shard=shard_id)
    return {"msg": "removeshard completed successfully", "state": "completed", "shard": shard_id}


async def _is_finished(operation: Operation, shard: ShardEntry) -> bool:
    """Whether a draining shard without data has no unfinished work."""
    others = [each for each in await operation.term.catalog.shards() if each.id != shard.id]
    unfinished = await _unfinished_work(operation.term.shards, shard, others)
    if unfinished is not None:
        logger.info("A shard that is draining has not finished something", shard=shard.id, what=unfinished)
    return unfinished is None


async def _begin(transaction: Transaction, shard_id: str) -> None:
    """Mark the shard as draining, unless the cluster or one of its zones requires it."""
    document = await transaction.find_one("shards", {"_id": shard_id})
    if document is None:
        raise CommandError(ErrorCode.ShardNotFound, f"Shard {shard_id} not found")
    others = {"_id": {"$ne": shard_id}, "draining": {"$ne": True}}
    if await transaction.find_one("shards", others) is None:
        raise CommandError(ErrorCode.IllegalOperation, "Operation not allowed because it would remove the last shard")
    for zone in document.get("tags", ()):
        is_only_one = await transaction.find_one("shards", {"_id": {"$ne": shard_id}, "tags": zone}) is None
        if is_only_one and await transaction.find_one("tags", {"tag": zone}) is not None:
            raise CommandError(
                ErrorCode.ZoneStillInUse,
                f"Operation not allowed because it would remove the only shard for zone {zone} which has a chunk range"
                " is associated with it",
            )
    transaction.put("shards", [{**document, "draining": True}])


async def _remove(transaction: Transaction, shard_id: str, time: object) -> None:
    """Remove the entry, and write the time into another shard's entry, where routers and shards read it.

    The commit fails if the shard has got a chunk or a database since the check.
    """
    for collection, query in (("chunks", {"shard": shard_id}), ("databases", {"primary": shard_id})):
        if await transaction.find_one(collection, query) is not None:
            raise CommandError(
                ErrorCode.ConflictingOperationInProgress, f"Shard {shard_id} got chunks or databases meanwhile"
            )
    other = await transaction.find_one("shards", {"_id": {"$ne": shard_id}}, sort={"_id": 1})
    if other is None:
        raise CommandError(ErrorCode.IllegalOperation, "Operation not allowed because it would remove the last shard")
    transaction.delete("shards", [shard_id])
    transaction.put("shards", [{**other, "topologyTime": time}])


async def _remaining(operation: Operation, shard_id: str) -> dict[str, Int64]:
    catalog = operation.term.catalog
    return {
        "chunks": await catalog.count("chunks", {"shard": shard_id}),
        "dbs": await catalog.count("databases", {"primary": shard_id}),
        "jumboChunks": await catalog.count("chunks", {"shard": shard_id, "jumbo": True}),
    }


def _is_anything_left(remaining: Mapping[str, Int64]) -> bool:
    return bool(remaining["chunks"] or remaining["dbs"])


async def _databases(operation: Operation, shard_id: str) -> dict[str, Any]:
    """Return the databases that the user has to drop or move."""
    databases = await operation.term.catalog.find("databases", {"primary": shard_id}, sort={"_id": 1})
    return {"note": _NOTE, "dbsToMove": [database["_id"] for database in databases]}


async def _unfinished_work(clients: ShardClients, shard: ShardEntry, others: Iterable[ShardEntry]) -> str | None:
    """Return the name of a collection in which a shard has recorded unfinished work; None if there is none.

    An unreachable shard counts as finished, because it may be lost for good. The others are queried too, since they may
    be moving databases to it.
    """
    to_it = {_CHANGES: {"_id.operationType": "movePrimary", "to": shard.id}}
    found = await _recorded(clients, shard, _UNFINISHED)
    for other in others:
        found = found or await _recorded(clients, other, to_it)
    return found


async def _recorded(clients: ShardClients, shard: ShardEntry, queries: Mapping[str, Mapping[str, Any]]) -> str | None:
    """Return the first collection in which a shard has a matching document; None also if it is unreachable."""
    for collection, query in queries.items():
        find = {"find": collection, "filter": query, "limit": 1, "singleBatch": True}
        try:
            reply = await clients.command(shard, "config", find)
        except CommandError as error:
            if error.code != ErrorCode.FailedToSatisfyReadPreference and not has_category(error.code, Category.NETWORK):
                raise
            logger.warning("Cannot ask a shard what it has not finished", shard=shard.id, error=str(error))
            return None
        if reply["cursor"]["firstBatch"]:
            return collection
    return None
