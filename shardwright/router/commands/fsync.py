"""``fsync``."""

from shardwright.router.commands.command_registry import command
from shardwright.router.operations.operation import Operation
from shardwright.router.operations.routed_sending import read_all_shards
from shardwright.router.replies.own_reply import Reply
from shardwright.router.replies.plain_error import PlainError
from shardwright.router.replies.reply_fields import answer_of
from shardwright.router.replies.worst_error import raise_worst
from shardwright.wire.read_preference import PRIMARY


@command("fsync", admin_only=True)
async def fsync(operation: Operation) -> Reply:
    """Makes the primaries of all shards write their data to disk."""
    if operation.argument(b"lock"):
        raise PlainError("can't do lock through mongos")
    replies = await read_all_shards(operation, preference=PRIMARY)
    raise_worst(replies)
    return {
        "numFiles": sum(int(reply.get(b"numFiles", 0)) for reply in replies),
        "all": {reply.shard_id: answer_of(reply) for reply in replies},
    }
