"""Opening cursors on shards that a mongod will merge: all of them, or none, even if the client does not wait."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from shardwright.router.operations.operation import Operation
from shardwright.router.replies.shard_reply import ShardReply
from shardwright.router.replies.worst_error import raise_worst
from shardwright.wire.read_preference import ReadPreference

if TYPE_CHECKING:
    from shardwright.router.cursors.opening import Opening


async def open_for_merge(
    operation: Operation, frames: Mapping[str, bytes], *, preference: ReadPreference, may_repeat: bool = True
) -> list[ShardReply]:
    """Send commands that open cursors to several shards at once; returns their replies, all of them successful.

    Unless all could be opened, those that were are killed, and so are those that shards open later: nobody reads them,
    and they would stay open until they time out.

    Args:
        operation: the client's command.
        frames: the request for each shard.
        preference: which member may answer.
        may_repeat: a request may be sent again if a connection breaks.

    Raises:
        StaleRoutingError: some shard refused the versions.
        CommandError: some shard failed.
    """
    context = operation.context
    operation.targeted = tuple(frames)
    openings: list[Opening] = []
    is_complete = False
    try:
        for shard_id, frame in frames.items():
            opening = context.cursors.open_on_shard(
                operation.sender, shard_id, frame, preference=preference, may_repeat=may_repeat
            )
            openings.append(opening)
        replies = [await opening.reply() for opening in openings]
        raise_worst(replies)
        is_complete = True
        return replies
    finally:
        if not is_complete:
            for opening in openings:
                opening.abandon()
