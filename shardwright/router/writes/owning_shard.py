"""Updates that change a shard key value so that the document belongs to another shard.

The owner of the old value rejects these with WouldChangeOwningShard without changing anything. Moving the document
takes a transaction on both shards.
"""

from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError


def move_refused(statements: int) -> CommandError:
    """The client's error in place of WouldChangeOwningShard.

    Args:
        statements: how many its batch has.
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
