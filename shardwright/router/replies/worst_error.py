"""Choosing the error of an operation from several shards' errors."""

from collections.abc import Iterable

from shardwright.router.replies.shard_reply import ShardReply
from shardwright.wire.error_codes import Category, has_category


def raise_worst(replies: Iterable[ShardReply]) -> None:
    """Raise the most significant of several shards' errors: a stale version first, then the first of the others.

    Raises:
        StaleRoutingError: some shard refused the versions.
        ShardedViewError: it cannot run a read of a view alone.
        JoinNeededError: a pipeline reads collections that it does not have.
        CommandError: some shard failed.
    """
    failed = [reply for reply in replies if reply.error is not None]
    for reply in failed:
        reply.raise_if_stale()
        reply.raise_if_view()
        reply.raise_if_join_needed()
    # A lost host says less than a shard's own error.
    failed.sort(key=lambda reply: reply.error is not None and has_category(reply.error.code, Category.NETWORK))
    for reply in failed:
        reply.raise_for_error()
