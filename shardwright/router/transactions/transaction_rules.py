"""Which commands may run in a transaction, and with which concerns: what is refused before anything is executed.

A refusal leaves the transaction as it is.
"""

from typing import Final

from shardwright.router.transactions.session_fields import READ_CONCERN
from shardwright.sharding.operation_session import START_TRANSACTION
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import OBJECT, decode_document
from shardwright.wire.request import Request
from shardwright.wire.write_concern import WRITE_CONCERN

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
    """Refuse a command that may not run in a transaction, or not in this way.

    Args:
        name: the command's usual name.
        request: the command, with ``autocommit: false``.

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
    """Refuse a read concern that cannot be a transaction's, or comes too late; the shards check its times."""
    if request.fields[READ_CONCERN][0] != OBJECT:
        raise CommandError(ErrorCode.FailedToParse, "readConcern field should be an object")
    concern = decode_document(request.raw_object(READ_CONCERN) or b"")
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


def _unsupported(message: str) -> CommandError:
    return CommandError(ErrorCode.OperationNotSupportedInTransaction, message)


def _invalid(message: str) -> CommandError:
    return CommandError(ErrorCode.InvalidOptions, message)
