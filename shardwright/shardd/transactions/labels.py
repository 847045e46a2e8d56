"""The label of errors that this daemon itself answers to statements of transactions. Pure."""

from typing import Final

from shardwright.wire.error_codes import Category, ErrorCode, codes_of
from shardwright.wire.errors import CommandError

TRANSIENT_TRANSACTION_ERROR: Final = "TransientTransactionError"
"""The whole transaction may be repeated."""

ENDS: Final = frozenset({"abortTransaction", "commitTransaction", "prepareTransaction"})
"""The commands that end a transaction or prepare its end."""

_TRANSIENT: Final = codes_of(Category.STALE_ROUTING) | {
    *codes_of(Category.SNAPSHOT),
    ErrorCode.LockTimeout,
    ErrorCode.NoSuchTransaction,
    ErrorCode.PreparedTransactionInProgress,
    ErrorCode.ShardCannotRefreshDueToLocksHeld,
    ErrorCode.ShardInvalidatedForTargeting,
    ErrorCode.WriteConflict,
}
_TRANSIENT_UNLESS_ENDING: Final = codes_of(Category.RETRYABLE) - {ErrorCode.InternalTransactionNotSupported}


def label_error(error: CommandError, command: str) -> None:
    """Give an error the label that it has on a genuine shard.

    Args:
        error: the daemon's error.
        command: the command of the transaction that failed with it.
    """
    is_transient = error.code in _TRANSIENT or (command not in ENDS and error.code in _TRANSIENT_UNLESS_ENDING)
    if is_transient and TRANSIENT_TRANSACTION_ERROR not in error.labels:
        error.labels = (*error.labels, TRANSIENT_TRANSACTION_ERROR)
