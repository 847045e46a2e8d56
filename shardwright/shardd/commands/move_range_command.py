"""``_shardsvrMoveRange``: the config server's request to move a range to another shard."""

from typing import Any

from shardwright.shardd.commands.command_registry import command
from shardwright.shardd.commands.components import ShardComponents
from shardwright.shardd.migration.donor.request import MoveRangeRequest
from shardwright.wire.request import Request


@command("_shardsvrMoveRange", admin_only=True)
async def move_range(shard: ShardComponents, request: Request) -> dict[str, Any]:
    """Move a range of this shard to another one; returns when it has moved. It goes on if the client disconnects.

    Raises:
        CommandError: see `shardd.migration.migrations.Migrations.move_range`.
    """
    await shard.migrations.move_range(MoveRangeRequest.from_request(request))
    return {}
