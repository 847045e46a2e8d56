"""``currentOp`` and ``killOp``, for the daemon's operations and those of its mongod."""

from typing import Any

from shardwright.daemon.current_op import find_operations, found_operations
from shardwright.daemon.sidecar.own_operations import union_with
from shardwright.shardd.commands.command_registry import command
from shardwright.shardd.commands.components import ShardComponents
from shardwright.wire.request import Request


@command("currentOp", admin_only=True, primary_only=False, needs_identity=False, is_interruptible=True)
async def current_op(shard: ShardComponents, request: Request) -> dict[str, Any]:
    """The operations that match the command's fields."""
    operations = shard.operations()
    question = find_operations(request.document, [union_with(operations)] if operations else ())
    return {"inprog": found_operations(await shard.context.mongod.command("admin", question))}


@command("killOp", admin_only=True, primary_only=False, needs_identity=False)
async def kill_op(shard: ShardComponents, request: Request) -> dict[str, Any]:
    """End an operation: one of the daemon that `ShardComponents.operations` shows, or one of its mongod.

    Raises:
        CommandError: mongod refuses.
    """
    opid = request.get(b"op")
    kills = shard.migrations.kill, shard.coordinators.kill, shard.waiting.kill
    if isinstance(opid, int) and any(kill(opid) for kill in kills):
        return {"info": "attempting to kill op"}
    named = {} if opid is None else {"op": opid}
    return await shard.context.mongod.command("admin", {"killOp": 1, **named})
