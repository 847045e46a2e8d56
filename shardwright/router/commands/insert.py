"""``insert``."""

from shardwright.router.operation import Operation
from shardwright.router.registry import Reply, command
from shardwright.router.writes.execute import execute
from shardwright.router.writes.kind import WriteKind


@command("insert", writes=True, api_versions=("1",), begins_in_reactor=True)
async def insert(operation: Operation) -> Reply:
    """Inserts documents into a collection, each on the shard that owns its shard key."""
    return await execute(operation, WriteKind.INSERT)
