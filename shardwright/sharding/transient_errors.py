"""Which errors in transactions have the label of those after which a client may run its whole transaction again."""

from typing import Final

from shardwright.wire.error_codes import Category, ErrorCode, codes_of
from shardwright.wire.errors import TRANSIENT_TRANSACTION_ERROR, CommandError

_ALWAYS: Final = frozenset[int](
    {
        ErrorCode.WriteConflict,
        ErrorCode.LockTimeout,
        ErrorCode.PreparedTransactionInProgress,
        ErrorCode.ShardCannotRefreshDueToLocksHeld,
        ErrorCode.ShardInvalidatedForTargeting,
        ErrorCode.StaleDbVersion,
        ErrorCode.StaleConfig,
        ErrorCode.StaleEpoch,
    }
) | codes_of(Category.SNAPSHOT)

_OF_STATEMENTS: Final = codes_of(Category.RETRYABLE) | {ErrorCode.NoSuchTransaction}

_NEVER: Final = frozenset[int]({ErrorCode.InternalTransactionNotSupported})


SAYS_NOTHING: Final = frozenset[int](
    {
        ErrorCode.FailedToSatisfyReadPreference,
        ErrorCode.PreparedTransactionInProgress,
        ErrorCode.RetryableTransactionInProgress,
        ErrorCode.TemporarilyUnavailable,
    }
).union(
    *map(
        codes_of,
        (
            Category.CANCELLATION,
            Category.EXCEEDED_TIME_LIMIT,
            Category.INTERRUPTION,
            Category.NETWORK,
            Category.NETWORK_TIMEOUT,
            Category.NOT_PRIMARY,
            Category.RETRYABLE,
            Category.SHUTDOWN,
            Category.WRITE_CONCERN,
        ),
    )
)
"""Errors that pass, and leave open whether a shard has prepared or committed a transaction, or will."""


def label_transient(error: CommandError, *, is_ending: bool) -> None:
    """Add the label to an error in a transaction if it deserves it.

    Args:
        error: the error.
        is_ending: it is the answer to a commit or an abort. There, a retriable error says nothing about the outcome.
    """
    code = error.code
    if code in _NEVER or TRANSIENT_TRANSACTION_ERROR in error.labels:
        return
    if is_ending:
        is_transient = code in _ALWAYS or (
            code == ErrorCode.NoSuchTransaction and "writeConcernError" not in error.extra
        )
    else:
        is_transient = code in _ALWAYS or code in _OF_STATEMENTS
    if is_transient:
        error.labels = (*error.labels, TRANSIENT_TRANSACTION_ERROR)
