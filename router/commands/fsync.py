"""``fsync``."""

from router.ddl.reply_fields import answer_of
from router.ddl.send import read_all_shards
from router.operation import Operation
from router.plain_error import PlainError
from router.registry import Reply, command
from router.scatter import raise_worst
from wire.read_preference import PRIMARY


@command("fsync", admin_only=True)
async def fsync(operation: Operation) -> Reply:
    """Has the primaries of all shards write their data to disk."""
    if operation.argument(b"lock"):
        raise PlainError("can't do lock through mongos")
    replies = await read_all_shards(operation, preference=PRIMARY)
    raise_worst(replies)
    return {
        "numFiles": sum(int(reply.get(b"numFiles", 0)) for reply in replies),
        "all": {reply.shard_id: answer_of(reply) for reply in replies},
    }
