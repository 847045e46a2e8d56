"""``_configsvrAddShardToZone``: allow a shard to hold the ranges of a zone."""

from typing import Any

from shardwright.configd.catalog.transactions import Transaction
from shardwright.configd.commands.command_registry import config_command
from shardwright.configd.commands.operation import Operation
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError


@config_command("_configsvrAddShardToZone")
async def add_shard_to_zone(operation: Operation) -> dict[str, Any]:
    """Add the shard to the zone; the zone is created with its first shard.

    Raises:
        CommandError: ShardNotFound.
    """
    shard, zone = operation.subject, operation.arguments.string(b"zone")

    async def work(transaction: Transaction) -> None:
        document = await transaction.find_one("shards", {"_id": shard})
        if document is None:
            raise CommandError(ErrorCode.ShardNotFound, f"shard {shard} does not exist")
        zones = document.get("tags", [])
        if zone not in zones:
            transaction.put("shards", [{**document, "tags": [*zones, zone]}])

    async with operation.primary.locks.hold("zones"):
        await operation.primary.catalog.transaction(work)
    return {}
