"""``update``."""

from shardwright.router.commands.command_registry import command
from shardwright.router.operations.operation import Operation
from shardwright.router.operations.write_execution import execute
from shardwright.router.replies.own_reply import Reply
from shardwright.router.writes.kind import WriteKind


@command("update", writes=True, api_versions=("1",), begins_in_reactor=True)
async def update(operation: Operation) -> Reply:
    """Updates documents of a collection on the shards that may hold matches."""
    return await execute(operation, WriteKind.UPDATE)
