"""Aggregations that are refused in transactions; unlike `transaction_rules`, this aborts the transaction."""

from collections.abc import Iterable
from typing import Final

from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError

_WRITING: Final = frozenset({"$merge", "$out"})
_UNSUPPORTED: Final = frozenset({"$collStats", "$indexStats"})
_NOT_PERMITTED: Final = frozenset(
    {"$changeStream", "$currentOp", "$listCachedAndActiveUsers", "$listLocalSessions", "$planCacheStats"}
)
_PREFIX: Final = "Operation not permitted in transaction :: caused by ::"


def explanation_refused() -> CommandError:
    """The error of an aggregation that is only to be explained."""
    return _unsupported(f"{_PREFIX} Explain for the aggregate command cannot run within a multi-document transaction")


def refuse_stages(names: Iterable[str]) -> None:
    """Refuse stages that cannot run in a transaction.

    Raises:
        CommandError: OperationNotSupportedInTransaction.
    """
    for name in names:
        if name in _WRITING:
            raise _unsupported(f"{name} cannot be used in a transaction")
        if name in _UNSUPPORTED:
            raise _unsupported(f"Stage not supported inside of a multi-document transaction: {name}")
        if name in _NOT_PERMITTED:
            raise _unsupported(f"{_PREFIX} Aggregation stage {name} cannot run within a multi-document transaction.")


def _unsupported(message: str) -> CommandError:
    return CommandError(ErrorCode.OperationNotSupportedInTransaction, message)
