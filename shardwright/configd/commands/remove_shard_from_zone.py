"""``_configsvrRemoveShardFromZone``: no longer allow a shard to hold the ranges of a zone."""

from typing import Any

from shardwright.configd.catalog.transactions import Transaction
from shardwright.configd.commands.command_registry import config_command
from shardwright.configd.commands.operation import Operation
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError


@config_command("_configsvrRemoveShardFromZone")
async def remove_shard_from_zone(operation: Operation) -> dict[str, Any]:
    """Remove the shard from the zone.

    Raises:
        CommandError: ShardNotFound; ZoneStillInUse, it is the last shard of a zone that has ranges.
    """
    shard, zone = operation.subject, operation.arguments.string(b"zone")

    async def work(transaction: Transaction) -> None:
        document = await transaction.find_one("shards", {"_id": shard})
        if document is None:
            raise CommandError(ErrorCode.ShardNotFound, f"shard {shard} does not exist")
        if zone not in document.get("tags", ()):
            return
        is_last = await transaction.find_one("shards", {"tags": zone, "_id": {"$ne": shard}}) is None
        if is_last and await transaction.find_one("tags", {"tag": zone}) is not None:
            raise CommandError(
                ErrorCode.ZoneStillInUse, "cannot remove a shard from zone if a chunk range is associated with it"
            )
        zones = [other for other in document["tags"] if other != zone]
        transaction.put("shards", [{**document, "tags": zones}])

    async with operation.primary.locks.hold("zones"):
        await operation.primary.catalog.transaction(work)
    return {}
