"""The reply of commands for which MongoDB has no sum: the first shard's, with each shard's in it by shard id."""

from collections.abc import Sequence
from typing import Any

from shardwright.router.replies.reply_fields import answer_of, without_ok
from shardwright.router.replies.shard_reply import ShardReply
from shardwright.wire.errors import CommandError


def merge_promoted(replies: Sequence[ShardReply]) -> dict[str, Any]:
    """One reply from those of all shards, which are in the order of their ids.

    Raises:
        CommandError: that of a shard that could not be talked to; that of the first shard, if it failed.
    """
    for reply in replies:
        if not reply.frame:
            assert reply.error is not None
            raise CommandError(reply.error.code, f"failed on: {reply.shard_id} :: caused by :: {reply.error.message}")
    by_shard = {reply.shard_id: answer_of(reply) for reply in replies}
    first = replies[0]
    if first.error is not None:
        raise CommandError(first.error.code, first.error.message, extra={**first.error.extra, **by_shard})
    return without_ok(by_shard[first.shard_id]) | by_shard
