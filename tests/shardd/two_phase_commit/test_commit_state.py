"""The state machine of a commit, with every order of messages, failures and crashes."""

from typing import Any, Final

import pytest
from bson.timestamp import Timestamp
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from shardwright.shardd.two_phase_commit.commit_state import (
    Abort,
    Commit,
    CommitState,
    Decision,
    Prepared,
    Step,
    Vote,
    is_acknowledged,
    vote_of,
)
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from tests.sampling import many

SHARDS: Final = ("sh0", "sh1", "sh2")


class Participant:
    """A transaction in a participant's mongod, which answers as mongod does."""

    def __init__(self) -> None:
        self.state = "in progress"
        self.prepared_at = 0
        self.committed_at: Timestamp | None = None

    def prepare(self, now: int) -> dict[str, Any] | CommandError:
        if self.state == "in progress":
            self.state, self.prepared_at = "prepared", now
        return self._ended() or {"prepareTimestamp": Timestamp(self.prepared_at, 1)}

    def commit(self, time: Timestamp) -> dict[str, Any] | CommandError:
        if self.state == "in progress":
            self.state = "aborted"
            return CommandError(ErrorCode.InvalidOptions, "unprepared")
        if self.state == "aborted":
            return CommandError(ErrorCode.NoSuchTransaction, "aborted")
        assert time >= Timestamp(self.prepared_at, 1)
        self.state, self.committed_at = "committed", time
        return {}

    def abort(self) -> dict[str, Any] | CommandError:
        error = self._ended()
        if error is None:
            self.state = "aborted"
        return error or {}

    def _ended(self) -> CommandError | None:
        if self.state == "committed":
            return CommandError(ErrorCode.TransactionCommitted, "committed")
        return CommandError(ErrorCode.NoSuchTransaction, "aborted") if self.state == "aborted" else None


class Commits(RuleBasedStateMachine):
    """One commit. Messages may arrive late, again, or never; the coordinator forgets everything at any moment."""

    @initialize(count=st.integers(1, len(SHARDS)))
    def begin(self, count: int) -> None:
        self.participants = {shard: Participant() for shard in SHARDS[:count]}
        self.coordinator: CommitState | None = CommitState(tuple(self.participants))
        self.document: dict[str, Any] | None = None
        self.is_list_written = False
        self.told: set[Decision] = set()
        self.under_way: list[tuple[str, Decision | None]] = []
        self.clock = 100

    def _at(self, step: Step) -> CommitState | None:
        coordinator = self.coordinator
        return coordinator if coordinator is not None and coordinator.step is step else None

    # The coordinator's steps

    @rule()
    def write_participant_list(self) -> None:
        coordinator = self._at(Step.WRITING_PARTICIPANT_LIST)
        if coordinator is not None:
            self.document = coordinator.to_fields()
            self.is_list_written = True
            coordinator.participant_list_written()

    @rule(data=st.data(), is_answered=st.booleans())
    def ask_vote(self, data: st.DataObject, is_answered: bool) -> None:
        coordinator = self._at(Step.WAITING_FOR_VOTES)
        if coordinator is None:
            return
        shard = data.draw(st.sampled_from(coordinator.participants))
        self.under_way.append((shard, None))
        if is_answered:
            vote = vote_of(shard, self._deliver(shard, None))
            if vote is not None:
                coordinator.vote(shard, vote)

    @rule()
    def expire(self) -> None:
        coordinator = self._at(Step.WAITING_FOR_VOTES)
        if coordinator is not None:
            coordinator.expire()

    @rule(is_known_to_be_written=st.booleans())
    def write_decision(self, is_known_to_be_written: bool) -> None:
        coordinator = self._at(Step.WRITING_DECISION)
        if coordinator is not None:
            self.document = coordinator.to_fields()
            if is_known_to_be_written:
                coordinator.decision_written()

    @rule(data=st.data(), is_answered=st.booleans())
    def tell_decision(self, data: st.DataObject, is_answered: bool) -> None:
        coordinator = self._at(Step.WAITING_FOR_DECISION_ACKS)
        if coordinator is None or coordinator.decision is None:
            return
        shard = data.draw(st.sampled_from(coordinator.participants))
        self.told.add(coordinator.decision)
        self.under_way.append((shard, coordinator.decision))
        if is_answered and is_acknowledged(coordinator.decision, self._deliver(shard, coordinator.decision)):
            coordinator.acknowledge(shard)

    @rule(is_lost=st.booleans())
    def delete_document(self, is_lost: bool) -> None:
        coordinator = self._at(Step.DELETING_COORDINATOR_DOC)
        if coordinator is not None:
            # Deleted with w:1, so that the next primary may find it again.
            self.document = self.document if is_lost else None
            coordinator.document_deleted()

    # What happens to it and to the participants

    @precondition(lambda self: self.is_list_written)
    @rule()
    def crash(self) -> None:
        self.coordinator = None if self.document is None else CommitState.recovered(self.document)

    @rule(data=st.data())
    def arrive_late(self, data: st.DataObject) -> None:
        if self.under_way:
            self._deliver(*data.draw(st.sampled_from(self.under_way)))

    @rule(shard=st.sampled_from(SHARDS))
    def lose_transaction(self, shard: str) -> None:
        participant = self.participants.get(shard)
        if participant is not None and participant.state == "in progress":
            participant.state = "aborted"

    def _deliver(self, shard: str, decision: Decision | None) -> dict[str, Any] | CommandError:
        self.clock += 1
        participant = self.participants[shard]
        if decision is None:
            return participant.prepare(self.clock)
        return participant.commit(decision.timestamp) if isinstance(decision, Commit) else participant.abort()

    # What always holds

    @invariant()
    def all_commit_at_one_time_or_none_does(self) -> None:
        states = {each.state for each in self.participants.values()}
        assert not {"committed", "aborted"} <= states
        assert len({each.committed_at for each in self.participants.values() if each.committed_at is not None}) <= 1
        assert len({type(each) for each in self.told}) <= 1

    @invariant()
    def every_prepared_transaction_has_a_document(self) -> None:
        assert self.document is not None or all(each.state != "prepared" for each in self.participants.values())

    def teardown(self) -> None:
        """From every state the commit comes to its end, if the coordinator is recovered and answers arrive."""
        if not hasattr(self, "participants") or not self.is_list_written:
            return
        self.crash()
        coordinator = self.coordinator
        if coordinator is None:
            return
        for shard in coordinator.participants if coordinator.step is Step.WAITING_FOR_VOTES else ():
            vote = vote_of(shard, self._deliver(shard, None))
            assert vote is not None
            coordinator.vote(shard, vote)
        if coordinator.step is Step.WRITING_DECISION:
            coordinator.decision_written()
        assert coordinator.decision is not None
        for shard in coordinator.participants:
            assert is_acknowledged(coordinator.decision, self._deliver(shard, coordinator.decision))
            coordinator.acknowledge(shard)
        assert coordinator.step is Step.DELETING_COORDINATOR_DOC
        self.all_commit_at_one_time_or_none_does()
        assert all(each.state != "prepared" for each in self.participants.values())


TestCommits = Commits.TestCase
TestCommits.settings = settings(max_examples=many(2_000, 200), stateful_step_count=60, deadline=None)


def test_the_commit_timestamp_is_the_highest_prepare_timestamp() -> None:
    state = CommitState(SHARDS)
    state.participant_list_written()
    for shard, time in zip(SHARDS, (Timestamp(5, 9), Timestamp(7, 1), Timestamp(6, 30)), strict=True):
        state.vote(shard, Prepared(time))
    assert state.decision == Commit(Timestamp(7, 1))
    assert state.step is Step.WRITING_DECISION


def test_the_first_vote_to_abort_decides() -> None:
    state = CommitState(SHARDS)
    state.participant_list_written()
    state.vote("sh1", Abort(251, "first"))
    state.vote("sh0", Prepared(Timestamp(5, 1)))
    state.vote("sh2", Abort(225, "second"))
    assert state.decision == Abort(251, "first")


def test_a_recovered_state_writes_the_same_document() -> None:
    state = CommitState(SHARDS)
    state.participant_list_written()
    assert CommitState.recovered(state.to_fields()).to_fields() == state.to_fields()
    state.vote("sh1", Abort(251, "text"))
    decided = {
        "participants": list(SHARDS),
        "decision": {
            "decision": "abort",
            "abortStatus": {"code": 251, "codeName": "NoSuchTransaction", "errmsg": "text"},
        },
    }
    assert CommitState.recovered(state.to_fields()).to_fields() == state.to_fields() == decided


OVER: Final = (225, 251, 356)
ABORTING: Final = (*OVER, 148, 256, 263, 347)


@pytest.mark.parametrize("code", [*ABORTING, 1, 8, 15, 22, 72, 257, 10334, 17280])
def test_a_participant_that_cannot_prepare_votes_to_abort(code: int) -> None:
    assert vote_of("sh0", CommandError(code, "text")) == Abort(code, "from shard sh0 :: caused by :: text")


@pytest.mark.parametrize("code", OVER)
def test_a_transaction_that_is_over_is_an_acknowledgement(code: int) -> None:
    for decision in (Abort(251, ""), Commit(Timestamp(1, 1))):
        assert is_acknowledged(decision, CommandError(code, "text"))


@pytest.mark.parametrize("code", [148, 263, 347])
def test_a_refusal_that_leaves_the_transaction_as_it_is_is_no_acknowledgement(code: int) -> None:
    for decision in (Abort(251, ""), Commit(Timestamp(1, 1))):
        assert not is_acknowledged(decision, CommandError(code, "text"))


def test_a_committed_transaction_has_nothing_to_abort() -> None:
    error = CommandError(ErrorCode.TransactionCommitted, "text")
    assert is_acknowledged(Abort(251, ""), error)
    assert not is_acknowledged(Commit(Timestamp(1, 1)), error)


@pytest.mark.parametrize("code", [6, 24, 50, 64, 91, 112, 133, 189, 246, 10107, 11602])
def test_after_another_error_the_command_is_sent_again(code: int) -> None:
    error = CommandError(code, "text")
    assert vote_of("sh0", error) is None
    assert not is_acknowledged(Commit(Timestamp(1, 1)), error)


@pytest.mark.parametrize("code", ABORTING)
def test_an_answer_that_the_majority_has_not_confirmed_does_not_count(code: int) -> None:
    concern = {"writeConcernError": {"code": 64, "codeName": "WriteConcernFailed", "errmsg": ""}}
    error = CommandError(code, "text", extra=concern)
    assert vote_of("sh0", error) is None
    assert vote_of("sh0", {"prepareTimestamp": Timestamp(5, 1), **concern}) is None
    assert not is_acknowledged(Abort(251, ""), error)
    assert not is_acknowledged(Abort(251, ""), concern)


def test_a_removed_shard_votes_to_abort_and_has_nothing_to_abort() -> None:
    error = CommandError(ErrorCode.ShardNotFound, "Shard sh1 not found")
    vote: Vote | None = vote_of("sh1", error)
    assert vote == Abort(70, "from shard sh1 :: caused by :: Shard sh1 not found")
    assert is_acknowledged(Abort(70, ""), error)
    assert not is_acknowledged(Commit(Timestamp(1, 1)), error)


@pytest.mark.parametrize("code", [59, 193])
def test_a_mongod_without_test_commands_votes_to_abort(code: int) -> None:
    vote = vote_of("sh1", CommandError(code, "no such command"))
    assert isinstance(vote, Abort)
    assert vote.code == ErrorCode.OperationNotSupportedInTransaction
    assert "enableTestCommands=1" in vote.message


@pytest.mark.parametrize("reply", [{}, {"prepareTimestamp": Timestamp(0, 0)}, {"prepareTimestamp": 5}])
def test_a_prepare_without_a_timestamp_is_a_vote_to_abort(reply: dict[str, Any]) -> None:
    assert isinstance(vote_of("sh0", reply), Abort)
