"""Commands, concerns and stages that transactions refuse, and the errors about a session's transaction.

A refused command or concern does not execute anything, and the transaction continues. A refused aggregation aborts it.
"""

from collections.abc import Iterable
from typing import Final

from shardwright.router.transactions.router_transaction import READ_CONCERN
from shardwright.sharding.bson_text import document_text
from shardwright.sharding.logical_sessions import SessionId
from shardwright.sharding.transaction_protocol import START_TRANSACTION
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import decode_document, from_elements
from shardwright.wire.request import Request
from shardwright.wire.request_validation import WRITE_CONCERN

COMMIT: Final = "commitTransaction"
ABORT: Final = "abortTransaction"
ENDING: Final = frozenset({COMMIT, ABORT})

_ALLOWED: Final = ENDING | {
    *("aggregate", "create", "createIndexes", "delete", "distinct", "find", "findAndModify", "getMore", "insert"),
    *("killCursors", "update"),
}
_NEVER_FIRST: Final = {
    COMMIT: "Cannot start a transaction with a commit",
    ABORT: "Cannot start a transaction with an abort",
    "killCursors": "Cannot run killCursors as the first operation in a multi-document transaction.",
}
_DATABASES: Final = {
    "config": "Cannot run command against the config database in a transaction.",
    "local": "Cannot run command against the 'local' database in a transaction.",
}
_LEVELS: Final = frozenset({"local", "majority", "snapshot"})
_OTHER_LEVELS: Final = frozenset({"available", "linearizable"})
_WITHOUT_SNAPSHOT: Final = frozenset({"create", "createIndexes"})


def check_allowed(name: str, request: Request) -> None:
    """Refuse a command that may not run in a transaction, or not with these arguments.

    Raises:
        CommandError: OperationNotSupportedInTransaction; InvalidOptions, FailedToParse.
    """
    fields = request.fields
    if name not in _ALLOWED:
        more = ""
        if name == "count":
            more = " Please see http://dochub.mongodb.org/core/transaction-count for a recommended alternative."
        raise _unsupported(f"Cannot run '{name}' in a multi-document transaction.{more}")
    is_first = START_TRANSACTION in fields
    if name not in ENDING and request.db in _DATABASES:
        raise _unsupported(_DATABASES[request.db])
    if is_first and name in _NEVER_FIRST:
        raise _unsupported(_NEVER_FIRST[name])
    if WRITE_CONCERN in fields and name not in ENDING:
        raise _invalid("writeConcern is not allowed within a multi-statement transaction")
    if READ_CONCERN in fields:
        _check_read_concern(name, request, is_first=is_first)


def _check_read_concern(name: str, request: Request, *, is_first: bool) -> None:
    """Refuse a read concern that is unsupported in transactions or comes too late; the shards check its times."""
    concern = decode_document(request.raw(request.fields[READ_CONCERN]))
    if concern and not is_first:
        raise _invalid("Only the first command in a transaction may specify a readConcern")
    level = concern.get("level", "local")
    if level in _OTHER_LEVELS:
        raise _invalid(
            "The readConcern level must be either 'local' (default), 'majority' or 'snapshot' in order to run in a "
            "transaction"
        )
    if level not in _LEVELS:
        raise CommandError(
            ErrorCode.FailedToParse,
            "readConcern.level must be either 'local', 'majority', 'linearizable', 'available', or 'snapshot'",
        )
    if "atClusterTime" in concern and "afterClusterTime" in concern:
        raise _invalid(
            "Specifying a timestamp for readConcern snapshot in a causally consistent session is not allowed. See "
            "https://docs.mongodb.com/manual/core/read-isolation-consistency-recency/#causal-consistency"
        )
    if level == "snapshot" and name in _WITHOUT_SNAPSHOT:
        raise _invalid(
            f'Command {name} does not support this transaction\'s {{ readConcern: {{ level: "snapshot", '
            'provenance: "clientSupplied" } } :: caused by :: read concern not supported'
        )


def _invalid(message: str) -> CommandError:
    return CommandError(ErrorCode.InvalidOptions, message)


_WRITING: Final = frozenset({"$merge", "$out"})
_UNSUPPORTED: Final = frozenset({"$collStats", "$indexStats"})
_NOT_PERMITTED: Final = frozenset(
    {"$changeStream", "$currentOp", "$listCachedAndActiveUsers", "$listLocalSessions", "$planCacheStats"}
)
_PREFIX: Final = "Operation not permitted in transaction :: caused by ::"


def explanation_refused() -> CommandError:
    """Build the error for ``explain`` of an aggregation."""
    return _unsupported(f"{_PREFIX} Explain for the aggregate command cannot run within a multi-document transaction")


def refuse_stages(names: Iterable[str]) -> None:
    """Refuse stages that cannot run in a transaction, with OperationNotSupportedInTransaction."""
    for name in names:
        if name in _WRITING:
            raise _unsupported(f"{name} cannot be used in a transaction")
        if name in _UNSUPPORTED:
            raise _unsupported(f"Stage not supported inside of a multi-document transaction: {name}")
        if name in _NOT_PERMITTED:
            raise _unsupported(f"{_PREFIX} Aggregation stage {name} cannot run within a multi-document transaction.")


def _unsupported(message: str) -> CommandError:
    return CommandError(ErrorCode.OperationNotSupportedInTransaction, message)


_UUID_BYTES: Final = 16


def unknown_transaction(number: int, active: int) -> CommandError:
    """Build NoSuchTransaction for an unknown transaction; ``active`` is the session's last number, or -1."""
    return CommandError(
        ErrorCode.NoSuchTransaction,
        f"Given transaction number {number} does not match any in-progress transactions. The active transaction number "
        f"is {active}",
    )


def aborted_transaction(number: int) -> CommandError:
    """Build NoSuchTransaction for an aborted transaction."""
    return CommandError(ErrorCode.NoSuchTransaction, f"Transaction with {{ txnNumber: {number} }} has been aborted.")


def committed_transaction(number: int) -> CommandError:
    """Build TransactionCommitted."""
    return CommandError(
        ErrorCode.TransactionCommitted, f"Transaction with {{ txnNumber: {number} }} has been committed."
    )


def too_old_transaction(number: int, active: int, session: bytes) -> CommandError:
    """Build TransactionTooOld; ``active`` is the greater number of the session's last transaction."""
    return CommandError(
        ErrorCode.TransactionTooOld,
        f"Cannot start transaction with {{ txnNumber: {number} }} on session {_text(session)} because a newer "
        f"transaction with txnNumberAndRetryCounter {{ txnNumber: {active}, txnRetryCounter: 0 }} has already started "
        "on this session.",
    )


def restarted_transaction(number: int, session: bytes) -> CommandError:
    """Build ConflictingOperationInProgress for a first statement with a number that was used before."""
    return CommandError(
        ErrorCode.ConflictingOperationInProgress,
        f"txnNumber {number} for session {_text(session)} already started",
    )


def mismatched_api_parameters(command: str, given: bytes, first: bytes) -> CommandError:
    """Build APIMismatchError for Stable API parameters that differ from the transaction's first command."""
    return CommandError(
        ErrorCode.APIMismatchError,
        f"API parameter mismatch: {command} used params {document_text(from_elements(given))}, "
        f"the transaction's first command used {document_text(from_elements(first))}",
    )


def _text(session: bytes) -> str:
    return str(SessionId(session[:_UUID_BYTES], session[_UUID_BYTES:]))
