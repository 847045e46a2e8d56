"""``_configsvrRemoveShard``: drain a shard and, once it is empty, remove it from the cluster."""

from collections.abc import Mapping
from typing import Any, Final

from bson.int64 import Int64

from shardwright.configd.catalog.transactions import Transaction
from shardwright.configd.commands.command_registry import config_command
from shardwright.configd.commands.operation import Operation
from shardwright.configd.primary.locks import REMOVING_SHARDS
from shardwright.configd.shards.unfinished_work import unfinished_work
from shardwright.sharding.catalog.shard_entry import ShardEntry
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.logger import get_logger

logger = get_logger("configd.remove_shard")

_NOTE: Final = "you need to drop or movePrimary these databases"


@config_command("_configsvrRemoveShard")
async def remove_shard(operation: Operation) -> dict[str, Any]:
    """Begin to drain a shard, report what is left on it, or, if nothing is, remove it: repeated until it is removed.

    Raises:
        CommandError: ShardNotFound; IllegalOperation, it is the last shard; ZoneStillInUse, it is the only shard of a
            zone that has ranges.
    """
    shard_id, primary = operation.subject, operation.primary
    shard = await primary.catalog.shard(shard_id)
    may_be_finished = False
    if shard.is_draining and not _is_anything_left(await _remaining(operation, shard_id)):
        # Before the locks are held: a shard that does not answer must not hold up the others' moves of databases.
        may_be_finished = await _is_finished(operation, shard)
    async with primary.locks.hold(REMOVING_SHARDS, "zones"):
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
    """Whether nothing is under way in which a shard takes part that is draining and has nothing left."""
    others = [each for each in await operation.primary.catalog.shards() if each.id != shard.id]
    unfinished = await unfinished_work(operation.primary.shards, shard, others)
    if unfinished is not None:
        logger.info("A shard that is draining has not finished something", shard=shard.id, what=unfinished)
    return unfinished is None


async def _begin(transaction: Transaction, shard_id: str) -> None:
    """Mark the shard as draining, unless the cluster or one of its zones cannot do without it."""
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
    """Remove the entry, and write the time into that of another shard, by which everybody learns of it.

    Nothing may have come to the shard in between: the commit fails if there is a chunk or a database by then.
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
    catalog = operation.primary.catalog
    return {
        "chunks": await catalog.count("chunks", {"shard": shard_id}),
        "dbs": await catalog.count("databases", {"primary": shard_id}),
        "jumboChunks": await catalog.count("chunks", {"shard": shard_id, "jumbo": True}),
    }


def _is_anything_left(remaining: Mapping[str, Int64]) -> bool:
    return bool(remaining["chunks"] or remaining["dbs"])


async def _databases(operation: Operation, shard_id: str) -> dict[str, Any]:
    """The databases for which the user has to do something."""
    databases = await operation.primary.catalog.find("databases", {"primary": shard_id}, sort={"_id": 1})
    return {"note": _NOTE, "dbsToMove": [database["_id"] for database in databases]}
