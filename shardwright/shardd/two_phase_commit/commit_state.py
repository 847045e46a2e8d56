"""The state machine of a two-phase commit, without I/O.

What has happened is reported to it; it says which step comes next, and what the document has to contain. Steps that
are persisted are entered only when they are: a coordinator that is recovered from its document has never promised less
than it now knows.
"""

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, Self

from shardwright.shardd.two_phase_commit.decision import Abort, Commit, Decision, decision_from_document
from shardwright.shardd.two_phase_commit.participant_answers import Prepared, Vote
from shardwright.sharding.timestamps import pack_timestamp
from shardwright.wire.error_codes import ErrorCode


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

    Args:
        participants: the ids of the shards.

    Attributes:
        participants: see above.
        step: the current step.
        votes: the votes so far, by shard.
        decision: what was decided; None before that.
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
        """The state in which a coordinator continues from a document, which a former primary may have written.

        Raises:
            KeyError: the document is of no known form.
        """
        state = cls(document["participants"])
        state.step = Step.WAITING_FOR_VOTES
        decision = document.get("decision")
        if decision is not None:
            state.decision = decision_from_document(decision)
            state.step = Step.WAITING_FOR_DECISION_ACKS
        return state

    def to_fields(self) -> dict[str, Any]:
        """The fields of the document, without its ``_id``."""
        fields: dict[str, Any] = {"participants": list(self.participants)}
        if self.decision is not None:
            fields["decision"] = self.decision.to_document()
        return fields

    # What has happened

    def participant_list_written(self) -> None:
        """The participant list is durable, so participants may prepare."""
        self._advance(Step.WRITING_PARTICIPANT_LIST, Step.WAITING_FOR_VOTES)

    def vote(self, shard: str, vote: Vote) -> None:
        """A participant has voted. The first vote to abort decides; votes after the decision do not count."""
        assert shard in self.participants, shard
        if self.step is not Step.WAITING_FOR_VOTES:
            return
        self.votes[shard] = vote
        if isinstance(vote, Abort):
            self._decide(vote)
        elif len(self.votes) == len(self.participants):
            self._decide(Commit(max((each.timestamp for each in self._prepared()), key=pack_timestamp)))

    def expire(self) -> None:
        """The time for votes is over: abort, unless all have voted."""
        if self.step is Step.WAITING_FOR_VOTES:
            self._decide(Abort(ErrorCode.NoSuchTransaction, "Transaction exceeded deadline"))

    def decision_written(self) -> None:
        """The decision is durable, so participants may learn it."""
        self._advance(Step.WRITING_DECISION, Step.WAITING_FOR_DECISION_ACKS)

    def acknowledge(self, shard: str) -> None:
        """A participant has executed the decision."""
        assert self.step is Step.WAITING_FOR_DECISION_ACKS, self.step
        self.unacknowledged.discard(shard)
        if not self.unacknowledged:
            self._advance(Step.WAITING_FOR_DECISION_ACKS, Step.DELETING_COORDINATOR_DOC)

    def document_deleted(self) -> None:
        """Nothing is left to do."""
        self._advance(Step.DELETING_COORDINATOR_DOC, Step.ENDED)

    def _prepared(self) -> list[Prepared]:
        return [vote for vote in self.votes.values() if isinstance(vote, Prepared)]

    def _decide(self, decision: Decision) -> None:
        self.decision = decision
        self._advance(Step.WAITING_FOR_VOTES, Step.WRITING_DECISION)

    def _advance(self, present: Step, following: Step) -> None:
        assert self.step is present, (self.step, present)
        self.step = following
