"""Which of several shards' errors an operation fails with."""

from collections.abc import Iterable

from shardwright.router.replies.shard_reply import ShardReply
from shardwright.wire.error_codes import Category, has_category


def raise_worst(replies: Iterable[ShardReply]) -> None:
    """Raise the error that says most of several shards': one about stale versions first, then the first of the others.

    Raises:
        StaleRoutingError: some shard refused the versions.
        ShardedViewError: it was asked to read a view that it cannot run alone.
        CommandError: some shard failed.
    """
    failed = [reply for reply in replies if reply.error is not None]
    for reply in failed:
        reply.raise_if_stale()
        reply.raise_if_view()
    # A host that went away says less than a shard that answered why it would not.
    failed.sort(key=lambda reply: reply.error is not None and has_category(reply.error.code, Category.NETWORK))
    for reply in failed:
        reply.raise_for_error()
