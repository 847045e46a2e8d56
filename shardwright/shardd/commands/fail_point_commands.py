"""``configureFailPoint`` and ``waitForFailPoint``, for the daemon's fail points and those of its mongod."""

from typing import Any

from shardwright.daemon.fail_point_arguments import parse_configuration, parse_wait
from shardwright.shardd.commands.command_registry import command
from shardwright.shardd.commands.components import ShardComponents
from shardwright.wire.request import Request


@command("configureFailPoint", admin_only=True, primary_only=False, needs_identity=False)
async def configure_fail_point(shard: ShardComponents, request: Request) -> dict[str, Any]:
    """Turn a fail point on or off; ``count`` in the reply is how often it has been entered.

    Raises:
        CommandError: IllegalOperation, TypeMismatch or BadValue; or mongod's error for a fail point of its own.
    """
    wanted = parse_configuration(request)
    fail_points = shard.context.fail_points
    if wanted.name in fail_points.names:
        return {"count": fail_points.configure(wanted.name, wanted.mode, wanted.data)}
    return await shard.context.mongod.command(
        "admin", {"configureFailPoint": wanted.name, "mode": wanted.mode, "data": wanted.data}
    )


@command("waitForFailPoint", admin_only=True, primary_only=False, needs_identity=False, is_interruptible=True)
async def wait_for_fail_point(shard: ShardComponents, request: Request) -> dict[str, Any]:
    """Return when a fail point has been entered ``timesEntered`` times; as in MongoDB ``maxTimeMS`` is required.

    Raises:
        CommandError: 40414 without ``maxTimeMS``; or mongod's error for a fail point of its own.
    """
    wait = parse_wait(request)
    if wait.name not in shard.context.fail_points.names:
        return await shard.context.mongod.command(
            "admin", {"waitForFailPoint": wait.name, "timesEntered": wait.times, "maxTimeMS": wait.max_time_ms}
        )
    await shard.context.fail_points.wait_entered(wait.name, wait.times)
    return {}
