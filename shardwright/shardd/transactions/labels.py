"""The label of errors that this daemon itself answers to statements of transactions. Pure."""

from typing import Final

from shardwright.wire.error_codes import Category, ErrorCode, codes_of
from shardwright.wire.errors import CommandError

TRANSIENT_TRANSACTION_ERROR: Final = "TransientTransactionError"
"""The whole transaction may be repeated."""

_TRANSIENT: Final = codes_of(Category.STALE_ROUTING) | {
    *codes_of(Category.RETRYABLE),
    *codes_of(Category.SNAPSHOT),
    ErrorCode.LockTimeout,
    ErrorCode.NoSuchTransaction,
    ErrorCode.PreparedTransactionInProgress,
    ErrorCode.ShardCannotRefreshDueToLocksHeld,
    ErrorCode.ShardInvalidatedForTargeting,
    ErrorCode.WriteConflict,
} - {ErrorCode.InternalTransactionNotSupported}


def label_error(error: CommandError) -> None:
    """Give an error of a statement the label that it has on a genuine shard."""
    if error.code in _TRANSIENT and TRANSIENT_TRANSACTION_ERROR not in error.labels:
        error.labels = (*error.labels, TRANSIENT_TRANSACTION_ERROR)
