"""What a router knows of one transaction: its participants, and from that, what each of them is sent. No I/O.

The first shard contacted is the coordinator, the first that has written the recovery shard. A shard joins with the
first request that is sent to it, which starts the transaction there.
"""

from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from bson.timestamp import Timestamp

from shardwright.router.transactions.commit_path import CommitPath, CommitPlan
from shardwright.router.transactions.session_fields import (
    COORDINATOR_ELEMENT,
    STARTS_ELEMENT,
    read_concern_element,
    session_elements,
)
from shardwright.router.transactions.transaction_times import TransactionTimes
from shardwright.sharding.snapshot_concern import concern_at, demanded_time
from shardwright.sharding.timestamps import unpack_timestamp
from shardwright.sharding.versions import CONFIG_SHARD
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import EMPTY_DOCUMENT, decode_document, encode_document


class Phase(Enum):
    """How far a transaction is."""

    IN_PROGRESS = auto()
    """Statements may follow."""

    COMMITTING = auto()
    """A commit was sent, and its outcome is not known yet, or will never be."""

    COMMITTED = auto()

    ABORTED = auto()


@dataclass(slots=True)
class Participant:
    """A shard in a transaction.

    Attributes:
        is_read_only: whether nothing was changed there so far; None until the shard has answered.
    """

    is_read_only: bool | None = None


class RouterTransaction:
    """One transaction.

    Args:
        lsid: the raw id of its session.
        number: its ``txnNumber``.
        read_concern: raw, as its first statement gives it.
        elements: further raw elements of the commands by which the router ends it (the Stable API's parameters).

    Attributes:
        lsid: see above.
        number: see above.
        elements: see above.
        participants: by shard, in the order in which they joined.
        recovery_shard: the first participant that has written; None before.
        statement: how many statements have begun.
        requests: how many requests were made for participants.
        own_elements: the session fields of a request to any participant.
        phase: how far it is.
        commit_plan: what to send at a commit, once one was begun.
        times: when it began, and how long its commands have taken.
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

    # Statements

    def begin_statement(self) -> None:
        """A statement begins."""
        self.statement += 1

    def choose_time(self, newest: int) -> Timestamp | None:
        """The time at which all participants read, None unless the level of the read concern is snapshot.

        It is chosen once: what the client demands, or the newest time, but not before its ``afterClusterTime``.

        Args:
            newest: the newest cluster time that the router knows, packed.
        """
        if not self._is_snapshot or self._at_cluster_time is not None:
            return self._at_cluster_time
        self._at_cluster_time = demanded_time(self.read_concern, unpack_timestamp(newest))
        return self._at_cluster_time

    def join(self, shard: str) -> bytes:
        """What the next request to a shard carries; the shard becomes a participant, if it is not one yet.

        Raises:
            CommandError: OperationNotSupportedInTransaction, the config servers would have to commit together with
                others, which they cannot.
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

    def note_answer(self, shard: str, *, is_read_only: bool) -> None:
        """Note from a participant's successful reply whether all its statements so far have only read.

        One that has written stays a writer, whatever it says later: only a two-phase commit finds out whether the shard
        still has what was written.
        """
        participant = self.participants.get(shard)
        if participant is None:
            return
        participant.is_read_only = is_read_only and participant.is_read_only is not False
        if not is_read_only and self.recovery_shard is None:
            self.recovery_shard = shard

    def restart(self) -> bool:
        """Begin again after a shard refused the routing versions, if that is still possible; returns whether it is.

        Only the first statement may be repeated, and only if no shard has done anything for it: that shard would be
        left with what it did in the first attempt.
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
        """A participant leaves because it has refused its first request, and so has not begun the transaction."""
        del self.participants[shard]

    @property
    def coordinator(self) -> str | None:
        """The first participant."""
        return next(iter(self.participants), None)

    # The end

    def plan_commit(self) -> CommitPlan:
        """How to commit; the same again if a commit was begun before.

        Raises:
            CommandError: NoSuchTransaction, a participant never answered, so that it may have lost a statement.
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
        """All readers beside the single writer have committed: only the writer is asked from now on."""
        assert self.commit_plan is not None
        self.commit_plan = CommitPlan(CommitPath.ONE_SHARD, self.commit_plan.writers, self.commit_plan.writers)

    @property
    def may_be_aborted(self) -> bool:
        """Whether the router still decides about the outcome."""
        return self.phase is Phase.IN_PROGRESS

    def _concern_of_participants(self) -> bytes:
        if self._at_cluster_time is None:
            return self._read_concern
        return encode_document(concern_at(self.read_concern, self._at_cluster_time))
