"""``delete``."""

from shardwright.router.operation import Operation
from shardwright.router.registry import Reply, command
from shardwright.router.writes.execute import execute
from shardwright.router.writes.kind import WriteKind


@command("delete", writes=True, api_versions=("1",), begins_in_reactor=True)
async def delete(operation: Operation) -> Reply:
    """Deletes documents of a collection on the shards that may hold matches."""
    return await execute(operation, WriteKind.DELETE)
