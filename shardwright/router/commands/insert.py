"""``insert``."""

from shardwright.router.commands.command_registry import command
from shardwright.router.operations.operation import Operation
from shardwright.router.operations.write_execution import execute
from shardwright.router.replies.own_reply import Reply
from shardwright.router.writes.kind import WriteKind


@command("insert", writes=True, api_versions=("1",), begins_in_reactor=True)
async def insert(operation: Operation) -> Reply:
    """Inserts documents into a collection, each on the shard that owns its shard key."""
    return await execute(operation, WriteKind.INSERT)
