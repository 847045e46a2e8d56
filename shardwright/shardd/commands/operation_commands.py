"""``currentOp`` and ``killOp``, for the daemon's operations and those of its mongod."""

from typing import Any, Final

from shardwright.shardd.commands.command_registry import command
from shardwright.shardd.commands.components import ShardComponents
from shardwright.shardd.operations.current_op import union_with
from shardwright.wire.request import Request

_GENERIC: Final = frozenset({"lsid", "maxTimeMS", "comment", "apiVersion", "apiStrict", "apiDeprecationErrors"})


@command("currentOp", admin_only=True, primary_only=False, needs_identity=False, is_interruptible=True)
async def current_op(shard: ShardComponents, request: Request) -> dict[str, Any]:
    """The operations that match the command's fields, by a pipeline like the one mongod's ``currentOp`` builds."""
    arguments = request.document
    stage = {
        "allUsers": not arguments.get("$ownOps"),
        "idleConnections": bool(arguments.get("$all")),
        "truncateOps": True,
    }
    wanted = {
        name: value
        for position, (name, value) in enumerate(arguments.items())
        if position and not name.startswith("$") and name not in _GENERIC
    }
    operations = shard.migrations.progress()
    pipeline = [{"$currentOp": stage}, *([union_with(operations)] if operations else []), {"$match": wanted}]
    reply = await shard.context.mongod.command("admin", {"aggregate": 1, "pipeline": pipeline, "cursor": {}})
    return {"inprog": reply["cursor"]["firstBatch"]}


@command("killOp", admin_only=True, primary_only=False, needs_identity=False)
async def kill_op(shard: ShardComponents, request: Request) -> dict[str, Any]:
    """End an operation: a migration of the daemon, or one of its mongod.

    Raises:
        CommandError: mongod refuses.
    """
    opid = request.get(b"op")
    if isinstance(opid, int) and shard.migrations.kill(opid):
        return {"info": "attempting to kill op"}
    named = {} if opid is None else {"op": opid}
    return await shard.context.mongod.command("admin", {"killOp": 1, **named})
