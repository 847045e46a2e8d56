"""``movePrimary``."""

from typing import Final

from shardwright.router.commands.command_registry import command
from shardwright.router.ddl.coordinated import command_body
from shardwright.router.operations.operation import Operation
from shardwright.router.operations.routed_sending import send_to_primary_shard
from shardwright.router.replies.own_reply import Reply
from shardwright.wire.arguments import Arguments
from shardwright.wire.database_names import is_valid_database_name
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError

_FIXED: Final = frozenset({"admin", "config", "local"})


@command("movePrimary", aliases=("moveprimary",), admin_only=True, supports_write_concern=True)
async def move_primary(operation: Operation) -> Reply:
    """Makes another shard the primary shard of a database, and moves its unsharded collections there."""
    request = operation.request
    db = Arguments.of(request).namespace(request.name.encode())
    if not is_valid_database_name(db):
        raise CommandError(ErrorCode.InvalidNamespace, f"invalid db name specified: {db}")
    if db in _FIXED:
        raise CommandError(ErrorCode.InvalidOptions, f"Can't move primary for {db} database")
    identifier = Arguments.of(request).string(b"to")
    if not identifier:
        raise CommandError(ErrorCode.InvalidOptions, "you have to specify where you want to move it")
    await operation.context.shards.reload()
    shard = operation.context.shards.find(identifier)
    if shard is None:
        raise CommandError(ErrorCode.ShardNotFound, f"Shard {identifier} not found")
    body = command_body("admin", {"_shardsvrMovePrimary": db, "to": shard.id})
    try:
        await send_to_primary_shard(operation, db, body, may_repeat=True)
    finally:
        operation.context.routing.forget_database(db)
    return {}
