"""``validate`` of a collection from those of its shards."""

from collections.abc import Sequence
from typing import Any

from shardwright.router.replies.reply_fields import answer_of
from shardwright.router.replies.shard_reply import ShardReply
from shardwright.wire.errors import CommandError


def merge_validation(replies: Sequence[ShardReply]) -> dict[str, Any]:
    """Whether all shards find their part valid, and what each of them says.

    Unlike other merged replies, ``raw`` is keyed by shard id here.

    Raises:
        CommandError: that of the first shard that failed, with ``raw``.
    """
    raw = {reply.shard_id: answer_of(reply) for reply in replies}
    for reply in replies:
        if reply.error is not None:
            raise CommandError(reply.error.code, reply.error.message, extra={"raw": raw})
    return {"valid": all(bool(answer["valid"]) for answer in raw.values()), "raw": raw}
