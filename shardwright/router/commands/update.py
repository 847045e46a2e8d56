"""``update``."""

from shardwright.router.operation import Operation
from shardwright.router.registry import Reply, command
from shardwright.router.writes.execute import execute
from shardwright.router.writes.kind import WriteKind


@command("update", writes=True, api_versions=("1",), begins_in_reactor=True)
async def update(operation: Operation) -> Reply:
    """Updates documents of a collection on the shards that may hold matches."""
    return await execute(operation, WriteKind.UPDATE)
