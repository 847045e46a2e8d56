"""``cleanupOrphaned``: waiting until no orphans are left."""

from typing import Any

from shardwright.shardd.commands.command_registry import command
from shardwright.shardd.commands.components import ShardComponents
from shardwright.sharding.arguments import full_namespace
from shardwright.sharding.bson_text import document_text
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import EMPTY_DOCUMENT
from shardwright.wire.request import Request


@command("cleanupOrphaned", admin_only=True, is_interruptible=True)
async def cleanup_orphaned(shard: ShardComponents, request: Request) -> dict[str, Any]:
    """Return when all ranges of a collection that this shard gave away, or failed to receive, are deleted.

    As in MongoDB since 4.4, this only waits for the range deleter, and never returns a key at which it stopped.

    Raises:
        CommandError: OrphanedRangeCleanUpFailed, ``startingFromKey`` is not a shard key; or a range will not be deleted
            for now.
    """
    namespace = str(full_namespace(request))
    start = request.raw_object(b"startingFromKey") or EMPTY_DOCUMENT
    table = await shard.context.refresher.current_table(shard.context.namespace(namespace))
    if table is None:  # not sharded
        return {}
    pattern = table.key_pattern
    if start != EMPTY_DOCUMENT and pattern.normalize(start) is None:
        raise CommandError(
            ErrorCode.OrphanedRangeCleanUpFailed,
            f"could not cleanup orphaned data, start key {document_text(start)} does not match shard key pattern "
            f"{pattern}",
        )
    await shard.range_deletions.known.wait_all_deleted(namespace)
    return {}
