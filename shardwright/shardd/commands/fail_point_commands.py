"""``configureFailPoint`` and ``waitForFailPoint``, for the daemon's fail points and those of its mongod."""

from typing import Any

from shardwright.shardd.commands.command_registry import command
from shardwright.shardd.commands.components import ShardComponents
from shardwright.shardd.exchange.time_limit import seconds_allowed
from shardwright.wire.arguments import Arguments
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.request import Request


@command("configureFailPoint", admin_only=True, primary_only=False, needs_identity=False)
async def configure_fail_point(shard: ShardComponents, request: Request) -> dict[str, Any]:
    """Turn a fail point on or off; ``count`` in the reply is how often it has been entered.

    Raises:
        CommandError: BadValue, the mode is invalid; or mongod's error for a fail point of its own.
    """
    name = Arguments.of(request).string(b"configureFailPoint")
    mode, data = Arguments.of(request).required_value(b"mode"), request.get(b"data", {})
    if name not in shard.context.fail_points.names:
        return await shard.context.mongod.command("admin", {"configureFailPoint": name, "mode": mode, "data": data})
    return {"count": shard.context.fail_points.configure(name, mode, data)}


@command("waitForFailPoint", admin_only=True, primary_only=False, needs_identity=False, is_interruptible=True)
async def wait_for_fail_point(shard: ShardComponents, request: Request) -> dict[str, Any]:
    """Return when a fail point has been entered ``timesEntered`` times; as in MongoDB ``maxTimeMS`` is required.

    Raises:
        CommandError: InvalidOptions without ``maxTimeMS``; or mongod's error for a fail point of its own.
    """
    name, times = (
        Arguments.of(request).string(b"waitForFailPoint"),
        Arguments.of(request).required_value(b"timesEntered"),
    )
    if seconds_allowed(request) == float("inf"):
        raise CommandError(ErrorCode.InvalidOptions, "Missing required maxTimeMS")
    if name not in shard.context.fail_points.names:
        return await shard.context.mongod.command(
            "admin", {"waitForFailPoint": name, "timesEntered": times, "maxTimeMS": request.get(b"maxTimeMS")}
        )
    await shard.context.fail_points.wait_entered(name, times)
    return {}
