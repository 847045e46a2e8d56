"""The errors of requests whose transaction is not the session's current one, or has ended."""

from typing import Final

from shardwright.sharding.bson_text import document_text
from shardwright.sharding.session_cache import SessionId
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import from_elements

_UUID_BYTES: Final = 16


def unknown_transaction(number: int, active: int) -> CommandError:
    """NoSuchTransaction: nothing is known of a transaction.

    Args:
        number: of the transaction.
        active: of the session's last one, -1 if there was none.
    """
    return CommandError(
        ErrorCode.NoSuchTransaction,
        f"Given transaction number {number} does not match any in-progress transactions. The active transaction number "
        f"is {active}",
    )


def aborted_transaction(number: int) -> CommandError:
    """NoSuchTransaction: it was aborted."""
    return CommandError(ErrorCode.NoSuchTransaction, f"Transaction with {{ txnNumber: {number} }} has been aborted.")


def committed_transaction(number: int) -> CommandError:
    """TransactionCommitted."""
    return CommandError(
        ErrorCode.TransactionCommitted, f"Transaction with {{ txnNumber: {number} }} has been committed."
    )


def too_old_transaction(number: int, active: int, session: bytes) -> CommandError:
    """TransactionTooOld.

    Args:
        number: of the transaction.
        active: the greater number of the session's last one.
        session: its id (`SessionId.key`).
    """
    return CommandError(
        ErrorCode.TransactionTooOld,
        f"Cannot start transaction with {{ txnNumber: {number} }} on session {_text(session)} because a newer "
        f"transaction with txnNumberAndRetryCounter {{ txnNumber: {active}, txnRetryCounter: 0 }} has already started "
        "on this session.",
    )


def restarted_transaction(number: int, session: bytes) -> CommandError:
    """ConflictingOperationInProgress: a first statement names a number that was used before."""
    return CommandError(
        ErrorCode.ConflictingOperationInProgress,
        f"txnNumber {number} for session {_text(session)} already started",
    )


def mismatched_api_parameters(command: str, given: bytes, first: bytes) -> CommandError:
    """APIMismatchError: a command has other parameters of the Stable API than the first one of its transaction.

    Args:
        command: its name.
        given: its raw parameters.
        first: those of the first command.
    """
    return CommandError(
        ErrorCode.APIMismatchError,
        f"API parameter mismatch: {command} used params {document_text(from_elements(given))}, "
        f"the transaction's first command used {document_text(from_elements(first))}",
    )


def _text(session: bytes) -> str:
    return str(SessionId(session[:_UUID_BYTES], session[_UUID_BYTES:]))
