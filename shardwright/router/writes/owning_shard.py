"""Updates that change a shard key value so that the document belongs to another shard.

The owner of the old value answers those with WouldChangeOwningShard, having changed nothing. To move the document takes
a transaction over both shards.
"""

from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError


def move_refused(statements: int) -> CommandError:
    """What a client gets instead of WouldChangeOwningShard.

    Args:
        statements: how many there are in its batch.
    """
    if statements > 1:
        return CommandError(
            ErrorCode.InvalidOptions,
            "Document shard key value updates that cause the doc to move shards must be sent with write batch of "
            "size 1",
        )
    return CommandError(
        ErrorCode.IllegalOperation,
        "Updating the shard key value so that the document belongs to another shard is not supported",
    )
