"""State of one transaction on a router: its participants, the fields of each request, and its commit. No I/O.

Rules:

* A shard joins with the first request that is sent to it, which starts the transaction there. The first shard is the
  coordinator, and the first that has written is the recovery shard.
* All participants read at one time, chosen once if the read concern's level is snapshot.
* Only the first statement can restart after a stale version, and only if no shard has executed anything of it.
* `CommitPlan` depends on the number of participants and of writers. Once a commit has begun, a later one sends the same
  again. If the readers of a single writer have committed, only the writer commits.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum, auto
from time import monotonic, time
from typing import Any, Final, NamedTuple

from bson.timestamp import Timestamp

from shardwright.sharding.clock import CLUSTER_TIME
from shardwright.sharding.cluster_time import unpack_timestamp
from shardwright.sharding.logical_sessions import NO_USER
from shardwright.sharding.passage_fields import usual_session_id
from shardwright.sharding.transaction_protocol import (
    AUTOCOMMIT,
    START_TRANSACTION,
    TXN_NUMBER,
    concern_at,
    demanded_time,
)
from shardwright.sharding.versions import CONFIG_SHARD
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import (
    BOOL,
    EMPTY_DOCUMENT,
    INT64,
    OBJECT,
    decode_document,
    element,
    encode_document,
    encode_elements,
    index,
)
from shardwright.wire.request import Request

READ_CONCERN: Final = b"readConcern"
COORDINATOR: Final = b"coordinator"
RECOVERY_TOKEN: Final = b"recoveryToken"

STARTS_ELEMENT: Final = encode_elements({"startTransaction": True})
AUTOCOMMIT_ELEMENT: Final = element(AUTOCOMMIT, BOOL, b"\0")
COORDINATOR_ELEMENT: Final = encode_elements({"coordinator": True})
_LSID: Final = b"lsid"
_BINARY_AT: Final = 5  # after the length and the subtype of binary data

OF_TRANSACTIONS: Final = frozenset(
    {
        *(_LSID, TXN_NUMBER, AUTOCOMMIT, START_TRANSACTION, READ_CONCERN, COORDINATOR, RECOVERY_TOKEN, b"writeConcern"),
        CLUSTER_TIME,
    }
)
"""The fields of a request in a transaction that differ for each shard or are not sent to shards.

The router gossips its current time in place of the client's, because the snapshot may have a later time.
"""


class TransactionFields(NamedTuple):
    """The transaction fields of a request, which have been checked.

    Attributes:
        session: identifies the session (`SessionId.key`), since several users may use the same UUID.
    """

    lsid: bytes
    session: bytes
    number: int
    starts: bool
    read_concern: bytes = EMPTY_DOCUMENT

    @classmethod
    def of(cls, request: Request) -> "TransactionFields":
        """Read the fields of a request that has ``lsid`` and ``txnNumber``.

        Raises:
            CommandError: TypeMismatch, ``readConcern`` is not a document.
        """
        lsid = request.raw_object(_LSID)
        assert lsid is not None
        session, user = usual_session_id(lsid), NO_USER
        if session is None:
            fields = index(lsid)
            identifier, uid = fields[b"id"], fields.get(b"uid")
            user = NO_USER if uid is None else lsid[uid[2] + _BINARY_AT : uid[3]]
            session = lsid[identifier[2] + _BINARY_AT : identifier[3]]
        return cls(
            lsid,
            session + user,
            int(request.get(TXN_NUMBER)),
            START_TRANSACTION in request.fields,
            request.raw_object(READ_CONCERN) or EMPTY_DOCUMENT,
        )


def session_elements(lsid: bytes, number: int) -> bytes:
    """Build the elements that every request in a transaction has."""
    return (
        element(_LSID, OBJECT, lsid)
        + element(TXN_NUMBER, INT64, number.to_bytes(8, "little", signed=True))
        + AUTOCOMMIT_ELEMENT
    )


def read_concern_element(read_concern: bytes) -> bytes:
    """Build the element ``readConcern`` from its raw value."""
    return element(READ_CONCERN, OBJECT, read_concern)


class CommitPath(Enum):
    """A path of the commit, with MongoDB's name for it (``commitType``)."""

    NO_SHARDS = "noShards"
    """No shard has joined, so nothing is sent."""

    ONE_SHARD = "singleShard"
    """The only participant commits."""

    READ_ONLY = "readOnly"
    """Each participant commits; all have only read."""

    ONE_WRITER = "singleWriteShard"
    """The readers commit, then the only writer; a failure before that aborts all."""

    TWO_PHASES = "twoPhaseCommit"
    """The coordinator runs a two-phase commit."""


@dataclass(frozen=True, slots=True)
class CommitPlan:
    """The commit of one transaction; the coordinator is the first of its shards."""

    path: CommitPath
    shards: tuple[str, ...]
    writers: tuple[str, ...]

    @classmethod
    def of(cls, shards: tuple[str, ...], writers: tuple[str, ...]) -> "CommitPlan":
        """Choose the plan for these participants."""
        if not shards:
            path = CommitPath.NO_SHARDS
        elif len(shards) == 1:
            path = CommitPath.ONE_SHARD
        elif not writers:
            path = CommitPath.READ_ONLY
        elif len(writers) == 1:
            path = CommitPath.ONE_WRITER
        else:
            path = CommitPath.TWO_PHASES
        return cls(path, shards, writers)

    @property
    def readers(self) -> tuple[str, ...]:
        """The participants that have not written."""
        return tuple(shard for shard in self.shards if shard not in self.writers)


class TransactionTimes:
    """Times of one transaction for ``$currentOp``; they cost each command two clock readings.

    Attributes:
        started: the wall clock time at which it began, in seconds since 1970.
        commit_started: the wall clock time at which its commit began; None before that.
    """

    __slots__ = ("_active_seconds", "_active_since", "_began", "commit_started", "started")

    def __init__(self) -> None:
        self.started = time()
        self.commit_started: float | None = None
        self._began = monotonic()
        self._active_seconds = 0.0
        self._active_since: float | None = None

    def begin_command(self) -> None:
        """Note that a command begins."""
        self._active_since = monotonic()

    def end_command(self) -> None:
        """Note that the command has ended."""
        if self._active_since is not None:
            self._active_seconds += monotonic() - self._active_since
            self._active_since = None

    def begin_commit(self) -> None:
        """Note that a commit begins."""
        self.commit_started = time()

    @property
    def open_seconds(self) -> float:
        """Seconds since it began."""
        return monotonic() - self._began

    @property
    def active_seconds(self) -> float:
        """Total seconds in which one of its commands was running."""
        since = self._active_since
        return self._active_seconds + (0.0 if since is None else monotonic() - since)


def iso_text(moment: float) -> str:
    """Format a wall clock time as in ``$currentOp``."""
    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="milliseconds")


class Phase(Enum):
    """The phases of a transaction."""

    IN_PROGRESS = auto()
    """Statements may follow."""

    COMMITTING = auto()
    """A commit was sent; its outcome is unknown, perhaps for good."""

    COMMITTED = auto()

    ABORTED = auto()


@dataclass(slots=True)
class Participant:
    """A shard in a transaction.

    ``is_read_only`` is None until the shard has answered.
    """

    is_read_only: bool | None = None


class RouterTransaction:
    """One transaction.

    Args:
        read_concern: the raw read concern of its first statement.
        elements: further raw elements of the commands that end it (the Stable API's parameters).

    Attributes:
        participants: by shard, in joining order.
        recovery_shard: the first participant that has written; None before.
        statement: the number of statements that have begun.
        requests: the number of requests for participants.
        own_elements: the session fields of every request.
    """

    __slots__ = (
        "_at_cluster_time",
        "_is_snapshot",
        "_read_concern",
        "commit_plan",
        "elements",
        "lsid",
        "number",
        "own_elements",
        "participants",
        "phase",
        "recovery_shard",
        "requests",
        "statement",
        "times",
    )

    def __init__(self, lsid: bytes, number: int, read_concern: bytes = EMPTY_DOCUMENT, elements: bytes = b"") -> None:
        self.lsid = lsid
        self.number = number
        self.elements = elements
        self.participants: dict[str, Participant] = {}
        self.recovery_shard: str | None = None
        self.statement = 0
        self.requests = 0
        self.phase = Phase.IN_PROGRESS
        self.commit_plan: CommitPlan | None = None
        self.own_elements = session_elements(lsid, number)
        self.times = TransactionTimes()
        self._read_concern = read_concern
        self._at_cluster_time: Timestamp | None = None
        self._is_snapshot = read_concern != EMPTY_DOCUMENT and self.read_concern.get("level") == "snapshot"

    @property
    def read_concern(self) -> dict[str, Any]:
        """The read concern of its first statement, decoded."""
        return decode_document(self._read_concern)

    @property
    def at_cluster_time(self) -> Timestamp | None:
        """The time at which all participants read, if one has been chosen."""
        return self._at_cluster_time

    @property
    def is_snapshot(self) -> bool:
        """Whether all participants read at one time: the read concern level is snapshot."""
        return self._is_snapshot

    # Statements

    def begin_statement(self) -> None:
        """Count a statement that begins."""
        self.statement += 1

    def choose_time(self, newest: int) -> Timestamp | None:
        """Choose the time at which all participants read; None unless the level of the read concern is snapshot.

        The time is chosen once: the client's, or ``newest``, but not before its ``afterClusterTime``.
        """
        if not self._is_snapshot or self._at_cluster_time is not None:
            return self._at_cluster_time
        self._at_cluster_time = demanded_time(self.read_concern, unpack_timestamp(newest))
        return self._at_cluster_time

    def join(self, shard: str) -> bytes:
        """Return the fields of the next request to a shard, which becomes a participant.

        Raises:
            CommandError: OperationNotSupportedInTransaction, the config servers cannot commit together with shards.
        """
        self.requests += 1
        if shard in self.participants:
            return self.own_elements
        if self.participants and CONFIG_SHARD in (shard, self.coordinator):
            raise CommandError(
                ErrorCode.OperationNotSupportedInTransaction,
                "Cannot use the admin database together with another one in a transaction.",
            )
        coordinates = not self.participants and shard != CONFIG_SHARD
        self.participants[shard] = Participant()
        starts = read_concern_element(self._concern_of_participants()) + STARTS_ELEMENT
        return self.own_elements + starts + (COORDINATOR_ELEMENT if coordinates else b"")

    def has_answer_of(self, shard: str) -> bool:
        """Whether a shard is a participant that has answered a statement."""
        participant = self.participants.get(shard)
        return participant is not None and participant.is_read_only is not None

    def note_answer(self, shard: str, *, is_read_only: bool) -> None:
        """Note from a participant's successful reply whether all its statements so far have only read.

        A writer remains a writer regardless of later replies: only a two-phase commit determines whether the shard
        still has its writes.
        """
        participant = self.participants.get(shard)
        if participant is None:
            return
        participant.is_read_only = is_read_only and participant.is_read_only is not False
        if not is_read_only and self.recovery_shard is None:
            self.recovery_shard = shard

    def note_statement(self, shard: str, *, is_read_only: bool) -> None:
        """Count a successful statement that was one request to a participant, and note its answer."""
        self.statement += 1
        self.requests += 1
        self.note_answer(shard, is_read_only=is_read_only)

    def restart(self) -> bool:
        """Restart after a shard refused the routing versions, if possible; returns whether it is.

        Only the first statement may be repeated, and only if no shard has executed a part of it, whose effects would
        remain.
        """
        if self.statement > 1 or len(self.participants) > 1:
            return False
        if any(each.is_read_only is not None for each in self.participants.values()):
            return False
        self.participants.clear()
        self.recovery_shard = None
        self._at_cluster_time = None
        return True

    def leave(self, shard: str) -> None:
        """Remove a participant that has refused its first request, and so has not started the transaction."""
        del self.participants[shard]

    @property
    def coordinator(self) -> str | None:
        """The first participant."""
        return next(iter(self.participants), None)

    # The end

    def plan_commit(self) -> CommitPlan:
        """Plan the commit; returns the same plan again if a commit was begun before.

        Raises:
            CommandError: NoSuchTransaction, a participant has never answered, so it may have lost a statement.
        """
        if self.commit_plan is None:
            writers = [shard for shard, each in self.participants.items() if not each.is_read_only]
            if self.lacks_answers:
                raise CommandError(
                    ErrorCode.NoSuchTransaction,
                    f"Transaction {self.number} cannot be committed: a participant has not answered any statement",
                )
            self.commit_plan = CommitPlan.of(tuple(self.participants), tuple(writers))
            self.times.begin_commit()
        self.phase = Phase.COMMITTING
        return self.commit_plan

    @property
    def lacks_answers(self) -> bool:
        """Whether a participant has never answered a statement, so that the transaction cannot be committed."""
        return any(each.is_read_only is None for each in self.participants.values())

    def readers_committed(self) -> None:
        """Note that all readers have committed, so that only the single writer remains to commit."""
        assert self.commit_plan is not None
        self.commit_plan = CommitPlan(CommitPath.ONE_SHARD, self.commit_plan.writers, self.commit_plan.writers)

    @property
    def may_be_aborted(self) -> bool:
        """Whether the router still decides the outcome."""
        return self.phase is Phase.IN_PROGRESS

    def _concern_of_participants(self) -> bytes:
        if self._at_cluster_time is None:
            return self._read_concern
        return encode_document(concern_at(self.read_concern, self._at_cluster_time))
