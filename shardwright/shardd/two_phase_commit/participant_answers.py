"""Interpreting a participant's answer to ``prepareTransaction`` and to the decision.

An answer that says nothing definite, such as a lost connection, a time limit or a write concern that was not satisfied,
has no meaning: the command is sent again. MongoDB asks again for a vote after nearly every error, until the lifetime of
the transaction is over. But a transaction that cannot be prepared will not be: its oplog entries are too deep, say.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from bson.timestamp import Timestamp

from shardwright.shardd.two_phase_commit.decision import Abort, Decision
from shardwright.sharding.timestamps import pack_timestamp
from shardwright.sharding.transient_errors import SAYS_NOTHING
from shardwright.wire.error_codes import Category, ErrorCode, codes_of
from shardwright.wire.errors import CommandError

_WRITE_CONCERN_ERROR: Final = "writeConcernError"

_IS_OVER: Final = frozenset({ErrorCode.TransactionTooOld, ErrorCode.NoSuchTransaction, ErrorCode.TxnRetryCounterTooOld})
"""After these errors a participant has no open transaction of that number, and never will."""

_MAY_STILL_PREPARE: Final = SAYS_NOTHING | codes_of(Category.SNAPSHOT) | {ErrorCode.WriteConflict}
"""After these errors a participant may have prepared, or be able to, or it says next that the transaction is over. All
others are votes to abort. Not all of those say that the transaction has ended, so they do not acknowledge a decision:
MongoDB counts most of its few votes to abort as acknowledgements, which could leave a prepared transaction without a
coordinator."""

_HAS_NOTHING_TO_ABORT: Final = frozenset({ErrorCode.ShardNotFound, ErrorCode.TransactionCommitted})
"""A shard that has been removed cannot have gone with something to commit, because a prepared transaction holds its
collections, and draining moves all of them away. A transaction that has been committed was never prepared for this
coordinator."""

_CANNOT_PREPARE: Final = frozenset({ErrorCode.CommandNotFound, ErrorCode.NoShardingEnabled})
"""What a mongod without test commands answers to ``prepareTransaction``."""

WITHOUT_TEST_COMMANDS: Final = (
    "a transaction that wrote on several shards needs prepareTransaction, for which the shards' mongods have to be "
    "started with --setParameter enableTestCommands=1"
)


@dataclass(frozen=True, slots=True)
class Prepared:
    """The participant has prepared, on a majority of its set.

    Attributes:
        timestamp: its prepare timestamp.
    """

    timestamp: Timestamp


Vote: TypeAlias = Prepared | Abort
"""A vote to abort is the decision that it leads to."""


def vote_of(shard: str, answer: Mapping[str, Any] | CommandError) -> Vote | None:
    """A participant's vote; None if it has to be asked again.

    Args:
        shard: the participant.
        answer: its reply to ``prepareTransaction``, or the error.
    """
    if _is_unconfirmed(answer):
        return None
    if isinstance(answer, CommandError):
        if answer.code in _CANNOT_PREPARE:
            code: int = ErrorCode.OperationNotSupportedInTransaction
            return Abort(code, f"{_from(shard)}{WITHOUT_TEST_COMMANDS}: {answer.message}")
        if answer.code in _MAY_STILL_PREPARE:
            return None
        return Abort(answer.code, f"{_from(shard)}{answer.message}")
    timestamp = answer.get("prepareTimestamp")
    if not isinstance(timestamp, Timestamp) or not pack_timestamp(timestamp):
        return Abort(ErrorCode.NoSuchTransaction, f"{_from(shard)}the reply to prepareTransaction has no timestamp")
    return Prepared(timestamp)


def is_acknowledged(decision: Decision, answer: Mapping[str, Any] | CommandError) -> bool:
    """Whether a participant has executed the decision; otherwise it has to be sent again.

    Args:
        decision: what was sent.
        answer: the reply to it, or the error.
    """
    if _is_unconfirmed(answer):
        return False
    if not isinstance(answer, CommandError):
        return True
    return answer.code in _IS_OVER or (isinstance(decision, Abort) and answer.code in _HAS_NOTHING_TO_ABORT)


def _is_unconfirmed(answer: Mapping[str, Any] | CommandError) -> bool:
    """Whether the majority has not confirmed an answer, which may be that of a primary that has been replaced."""
    return _WRITE_CONCERN_ERROR in (answer.extra if isinstance(answer, CommandError) else answer)


def _from(shard: str) -> str:
    return f"from shard {shard} :: caused by :: "
