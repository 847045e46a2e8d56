"""The state machine of a two-phase commit, without I/O.

A commit takes the steps of `Step`, in order. Its coordinator reports each event to `CommitState`. The state determines
the next step and the contents of the document in ``config.transaction_coordinators``.

Rules:

* No participant prepares before a majority has the participant list.
* The first vote to abort decides; so does the end of the transaction's lifetime. All votes to prepare decide to commit,
at the highest prepare timestamp.
* No participant receives the decision before a majority has it. A step that is persisted is entered only afterwards, so
a coordinator recovered from its document has never promised more than its document contains.
* The document is deleted after every participant has acknowledged the decision, because a mongod never requests one.

**Answers.** An indefinite answer (a lost connection, a time limit, an unsatisfied write concern) has no meaning: the
command is sent again. MongoDB requests a vote again after nearly every error, until the transaction's lifetime ends.
Here a permanent error is a vote to abort, for example oplog entries that are nested too deeply.

**Who may coordinate.** `UnbegunCommits` holds the transactions whose commit has not been requested yet.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from time import monotonic
from typing import Any, Final, Self, TypeAlias

import bson
from bson.int64 import Int64
from bson.timestamp import Timestamp

from shardwright.shardd.transactions.session_keys import session_key
from shardwright.sharding.cluster_time import pack_timestamp
from shardwright.sharding.transaction_protocol import LSID, SAYS_NOTHING, read_uuid
from shardwright.wire.error_codes import Category, ErrorCode, codes_of
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import Span, index


@dataclass(frozen=True, slots=True)
class TransactionId:
    """A transaction of a session (see `session_key`), which may be a child session."""

    session: bytes
    number: int

    @classmethod
    def read(cls, raw: bytes, lsid: Span, number: int) -> Self:
        """Read a transaction from a request; BadValue, TypeMismatch or InvalidUUID if its ``lsid`` is malformed."""
        session = session_key(raw, lsid)
        if session is None:
            raise CommandError(ErrorCode.BadValue, f"'{LSID}' is not the id of a session")
        read_uuid(session, index(session)[b"id"], f"{LSID}.id")
        return cls(session, number)

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        """Read a transaction from a document with an ``lsid`` and a ``txnNumber``; errors as `read`."""
        raw = bson.encode(document)
        return cls.read(raw, index(raw)[b"lsid"], int(document["txnNumber"]))

    def to_document(self) -> dict[str, Any]:
        """Return the ``lsid`` and ``txnNumber`` of a document or command."""
        return {"lsid": bson.decode(self.session), "txnNumber": Int64(self.number)}

    @property
    def session_id(self) -> str:
        """The session's UUID, for the log."""
        return str(bson.decode(self.session)["id"].as_uuid())


_COMMIT: Final = "commit"
_ABORT: Final = "abort"


@dataclass(frozen=True, slots=True)
class Commit:
    """Decision to commit: all participants have prepared, and commit at their highest prepare timestamp."""

    timestamp: Timestamp

    def to_document(self) -> dict[str, Any]:
        """Return the field ``decision`` of the coordinator's document."""
        return {"decision": _COMMIT, "commitTimestamp": self.timestamp}


@dataclass(frozen=True, slots=True)
class Abort:
    """Decision to abort: a participant cannot commit, or the transaction's lifetime has ended.

    Attributes:
        code: error code for the router.
        message: error text, which names the participant.
    """

    code: int
    message: str

    def to_document(self) -> dict[str, Any]:
        """Return the field ``decision`` of the coordinator's document."""
        error = CommandError(self.code, self.message)
        status = {"code": error.code, "codeName": error.code_name, "errmsg": error.message}
        return {"decision": _ABORT, "abortStatus": status}


Decision: TypeAlias = Commit | Abort


def decision_from_document(document: Mapping[str, Any]) -> Decision:
    """Read the decision in a coordinator's document; KeyError if its form is unknown."""
    if document["decision"] == _COMMIT:
        return Commit(document["commitTimestamp"])
    status = document["abortStatus"]
    return Abort(status["code"], status["errmsg"])


def name_of(decision: Decision | None) -> str | None:
    """Return ``commit`` or ``abort``; None while nothing is decided."""
    if decision is None:
        return None
    return _COMMIT if isinstance(decision, Commit) else _ABORT


_WRITE_CONCERN_ERROR: Final = "writeConcernError"

_IS_OVER: Final = frozenset({ErrorCode.TransactionTooOld, ErrorCode.NoSuchTransaction, ErrorCode.TxnRetryCounterTooOld})
"""Errors that prove that a participant has no open transaction of that number, and never will."""

_MAY_STILL_PREPARE: Final = SAYS_NOTHING | codes_of(Category.SNAPSHOT) | {ErrorCode.WriteConflict}
"""Errors after which a participant may have prepared, may still prepare, or answers next that the transaction is over.

All other errors are votes to abort. Some of them do not prove that the transaction has ended, so they do not
acknowledge a decision. MongoDB counts most of its few votes to abort as acknowledgements, which could leave a prepared
transaction without a coordinator.
"""

_HAS_NOTHING_TO_ABORT: Final = frozenset({ErrorCode.ShardNotFound, ErrorCode.TransactionCommitted})
"""Errors that acknowledge a decision to abort.

A removed shard cannot hold a prepared transaction: the transaction would lock its collections, and draining moves all
of them away. A committed transaction was never prepared for this coordinator.
"""

_CANNOT_PREPARE: Final = frozenset({ErrorCode.CommandNotFound, ErrorCode.NoShardingEnabled})
"""The errors with which a mongod without test commands answers ``prepareTransaction``."""

WITHOUT_TEST_COMMANDS: Final = (
    "a transaction that wrote on several shards needs prepareTransaction, for which the shards' mongods have to be "
    "started with --setParameter enableTestCommands=1"
)


@dataclass(frozen=True, slots=True)
class Prepared:
    """Vote of a participant that has prepared on a majority of its set, with its prepare timestamp."""

    timestamp: Timestamp


Vote: TypeAlias = Prepared | Abort
"""A vote to abort is the decision that it leads to."""


def vote_of(shard: str, answer: Mapping[str, Any] | CommandError) -> Vote | None:
    """Interpret a reply to ``prepareTransaction`` or its error; None means that the command must be sent again."""
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
    """Whether a participant has executed the decision; otherwise it must be sent again."""
    if _is_unconfirmed(answer):
        return False
    if not isinstance(answer, CommandError):
        return True
    return answer.code in _IS_OVER or (isinstance(decision, Abort) and answer.code in _HAS_NOTHING_TO_ABORT)


def _is_unconfirmed(answer: Mapping[str, Any] | CommandError) -> bool:
    """Whether a majority has not confirmed an answer; its sender may have been replaced as primary."""
    return _WRITE_CONCERN_ERROR in (answer.extra if isinstance(answer, CommandError) else answer)


def _from(shard: str) -> str:
    return f"from shard {shard} :: caused by :: "


class Step(Enum):
    """The steps of a commit, in this order, with MongoDB's names."""

    WRITING_PARTICIPANT_LIST = "writingParticipantList"
    WAITING_FOR_VOTES = "waitingForVotes"
    WRITING_DECISION = "writingDecision"
    WAITING_FOR_DECISION_ACKS = "waitingForDecisionAcks"
    DELETING_COORDINATOR_DOC = "deletingCoordinatorDoc"
    ENDED = "ended"

    @property
    def state(self) -> str:
        """Its name in ``$currentOp``, where MongoDB has one acknowledgement only."""
        return "waitingForDecisionAck" if self is Step.WAITING_FOR_DECISION_ACKS else self.value


class CommitState:
    """A two-phase commit.

    Attributes:
        votes: the votes so far, by shard.
        unacknowledged: the participants that have not acknowledged the decision.
    """

    def __init__(self, participants: Sequence[str]) -> None:
        assert participants
        self.participants = tuple(participants)
        self.step = Step.WRITING_PARTICIPANT_LIST
        self.votes: dict[str, Vote] = {}
        self.decision: Decision | None = None
        self.unacknowledged = set(participants)

    @classmethod
    def recovered(cls, document: Mapping[str, Any]) -> Self:
        """Resume from a document, maybe a former primary's; KeyError if its form is unknown."""
        state = cls(document["participants"])
        state.step = Step.WAITING_FOR_VOTES
        decision = document.get("decision")
        if decision is not None:
            state.decision = decision_from_document(decision)
            state.step = Step.WAITING_FOR_DECISION_ACKS
        return state

    def to_fields(self) -> dict[str, Any]:
        """Return the fields of the document, without its ``_id``."""
        fields: dict[str, Any] = {"participants": list(self.participants)}
        if self.decision is not None:
            fields["decision"] = self.decision.to_document()
        return fields

    # Events

    def participant_list_written(self) -> None:
        """Record that the participant list is durable, so participants may prepare."""
        self._advance(Step.WRITING_PARTICIPANT_LIST, Step.WAITING_FOR_VOTES)

    def vote(self, shard: str, vote: Vote) -> None:
        """Record a participant's vote. Votes after the decision are ignored."""
        assert shard in self.participants, shard
        if self.step is not Step.WAITING_FOR_VOTES:
            return
        self.votes[shard] = vote
        if isinstance(vote, Abort):
            self._decide(vote)
        elif len(self.votes) == len(self.participants):
            self._decide(Commit(max((each.timestamp for each in self._prepared()), key=pack_timestamp)))

    def expire(self) -> None:
        """Record the end of the transaction's lifetime: abort, unless all have voted."""
        if self.step is Step.WAITING_FOR_VOTES:
            self._decide(Abort(ErrorCode.NoSuchTransaction, "Transaction exceeded deadline"))

    def decision_written(self) -> None:
        """Record that the decision is durable, so it may be sent to participants."""
        self._advance(Step.WRITING_DECISION, Step.WAITING_FOR_DECISION_ACKS)

    def acknowledge(self, shard: str) -> None:
        """Record that a participant has executed the decision."""
        assert self.step is Step.WAITING_FOR_DECISION_ACKS, self.step
        self.unacknowledged.discard(shard)
        if not self.unacknowledged:
            self._advance(Step.WAITING_FOR_DECISION_ACKS, Step.DELETING_COORDINATOR_DOC)

    def document_deleted(self) -> None:
        """Record that the document has been deleted, which ends the commit."""
        self._advance(Step.DELETING_COORDINATOR_DOC, Step.ENDED)

    def _prepared(self) -> list[Prepared]:
        return [vote for vote in self.votes.values() if isinstance(vote, Prepared)]

    def _decide(self, decision: Decision) -> None:
        self.decision = decision
        self._advance(Step.WAITING_FOR_VOTES, Step.WRITING_DECISION)

    def _advance(self, present: Step, following: Step) -> None:
        assert self.step is present, (self.step, present)
        self.step = following


class CommitTimes:
    """The times at which a commit entered each of its steps.

    Attributes:
        began: the wall clock time at which this process started or resumed the commit.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self.began = self.now()
        self._clock = clock
        self._began = clock()
        self._entered: dict[Step, float] = {}

    @staticmethod
    def now() -> datetime:
        """Return the wall clock time."""
        return datetime.now(UTC).replace(tzinfo=None)

    def enter(self, step: Step) -> None:
        """Record that a step begins, and the one before it ends."""
        self._entered[step] = self._clock()

    @property
    def total_seconds(self) -> float:
        """The duration of the commit so far."""
        return self._clock() - self._began

    def durations(self) -> dict[str, int]:
        """Return the microseconds in each entered step, and in all of them, under their ``currentOp`` names."""
        steps, times = list(self._entered), [*self._entered.values(), self._clock()]
        micros = {
            f"{step.value}Micros": _micros(end - start)
            for step, start, end in zip(steps, times[:-1], times[1:], strict=True)
            if step is not Step.ENDED
        }
        return {**micros, "totalCommitDurationMicros": _micros(self.total_seconds)}


def _micros(seconds: float) -> int:
    return round(seconds * 1_000_000)


class UnbegunCommits:
    """For each session, the transaction whose first statement made this shard its coordinator.

    A transaction leaves the table when its commit begins, its lifetime ends, or the session begins a newer one. Without
    an entry no coordinator is created, because the transaction's coordinator may already have ended.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._by_session: dict[bytes, tuple[int, float]] = {}

    def __len__(self) -> int:
        """Return the number of transactions, including some whose lifetime is over."""
        return len(self._by_session)

    def begin(self, identity: TransactionId, lifetime_seconds: float) -> bool:
        """Add a transaction, replacing an older one of its session.

        Returns:
            False if the transaction is in the table: it starts again after an error of its first statement.
        """
        self._discard_expired()
        session = identity.session
        known = self._by_session.get(session)
        if known is not None and known[0] >= identity.number:
            return False
        # Entries are in the order of their deadlines, as far as the lifetime stays the same.
        self._by_session.pop(session, None)
        self._by_session[session] = identity.number, self._clock() + lifetime_seconds
        return True

    def take(self, identity: TransactionId) -> float | None:
        """Remove a transaction; return the end of its lifetime, None if it is not in the table."""
        self._discard_expired()
        known = self._by_session.get(identity.session)
        if known is None or known[0] != identity.number:
            return None
        del self._by_session[identity.session]
        return known[1]

    def has(self, identity: TransactionId) -> bool:
        """Whether a transaction is in the table."""
        known = self._by_session.get(identity.session)
        return known is not None and known[0] == identity.number and known[1] > self._clock()

    def clear(self) -> None:
        """Remove all entries."""
        self._by_session.clear()

    def _discard_expired(self) -> None:
        now = self._clock()
        while self._by_session:
            session = next(iter(self._by_session))
            if self._by_session[session][1] > now:
                return
            del self._by_session[session]
