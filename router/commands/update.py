"""``update``."""

from router.operation import Operation
from router.registry import Reply, command
from router.writes.execute import execute
from router.writes.kind import WriteKind


@command("update", writes=True, api_versions=("1",), begins_in_reactor=True)
async def update(operation: Operation) -> Reply:
    """Updates documents of a collection on the shards that may hold matches."""
    return await execute(operation, WriteKind.UPDATE)
