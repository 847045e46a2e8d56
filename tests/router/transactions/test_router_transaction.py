"""Requests to each participant of a transaction, and the end of the transaction."""

from typing import Any

import bson
import pytest
from bson import Int64
from bson.binary import Binary
from bson.timestamp import Timestamp
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from shardwright.router.transactions.router_transaction import CommitPath, Phase, RouterTransaction
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import from_elements

LSID = bson.encode({"id": Binary(bytes(16), 4)})
SHARDS = ("a", "b", "c")


def begun(read_concern: dict[str, Any] | None = None) -> RouterTransaction:
    """A transaction in its first statement."""
    transaction = RouterTransaction(LSID, 7, bson.encode(read_concern or {}))
    transaction.begin_statement()
    return transaction


def fields(elements: bytes) -> dict[str, Any]:
    """Elements, decoded."""
    return bson.decode(from_elements(elements))


def test_first_request_to_a_shard_starts_the_transaction_there() -> None:
    transaction = begun({"level": "majority"})
    first, second = fields(transaction.join("a")), fields(transaction.join("b"))
    common = {"lsid": bson.decode(LSID), "txnNumber": Int64(7), "autocommit": False}
    starting = {"readConcern": {"level": "majority"}, "startTransaction": True}
    assert first == {**common, "coordinator": True, **starting}
    assert second == {**common, **starting}


def test_later_requests_continue_it() -> None:
    transaction = begun()
    transaction.join("a")
    transaction.join("b")
    transaction.begin_statement()
    assert fields(transaction.join("a")).keys() == {"lsid", "txnNumber", "autocommit"}
    assert fields(transaction.join("b")).keys() == {"lsid", "txnNumber", "autocommit"}


def test_all_participants_read_at_one_time() -> None:
    transaction = begun({"level": "snapshot"})
    assert transaction.choose_time(5 << 32 | 2) == Timestamp(5, 2)
    transaction.join("a")
    transaction.begin_statement()
    assert transaction.choose_time(9 << 32) == Timestamp(5, 2)
    assert fields(transaction.join("b"))["readConcern"] == {"level": "snapshot", "atClusterTime": Timestamp(5, 2)}


@pytest.mark.parametrize(
    ("after", "newest", "chosen"), [((7, 1), 5, (7, 1)), ((5, 9), 6, (6, 0))], ids=["client", "router"]
)
def test_snapshot_is_not_before_what_the_client_has_seen(
    after: tuple[int, int], newest: int, chosen: tuple[int, int]
) -> None:
    transaction = begun({"level": "snapshot", "afterClusterTime": Timestamp(*after)})
    assert transaction.choose_time(newest << 32) == Timestamp(*chosen)


def test_time_that_the_client_demands_is_taken() -> None:
    transaction = begun({"level": "snapshot", "atClusterTime": Timestamp(3, 4)})
    assert transaction.choose_time(9 << 32) == Timestamp(3, 4)


def test_other_levels_have_no_time() -> None:
    assert begun({"level": "majority", "afterClusterTime": Timestamp(9, 9)}).choose_time(1 << 32) is None


def test_first_statement_may_be_repeated_on_one_shard() -> None:
    transaction = begun({"level": "snapshot"})
    transaction.choose_time(1 << 32)
    transaction.join("a")
    assert transaction.restart()
    assert transaction.choose_time(2 << 32) == Timestamp(2, 0)
    assert fields(transaction.join("a"))["startTransaction"]


def test_first_statement_is_not_repeated_on_several_shards() -> None:
    transaction = begun()
    transaction.join("a")
    transaction.join("b")
    assert not transaction.restart()


def test_first_statement_is_not_repeated_after_a_shard_has_answered() -> None:
    transaction = begun()
    transaction.join("a")
    transaction.note_answer("a", is_read_only=True)
    assert not transaction.restart()


def test_later_statement_is_not_repeated() -> None:
    transaction = begun()
    transaction.begin_statement()
    transaction.join("a")
    assert not transaction.restart()


def test_recovery_shard_is_the_first_that_has_written() -> None:
    transaction = begun()
    for shard, is_read_only in (("a", True), ("b", False), ("c", False)):
        transaction.join(shard)
        transaction.note_answer(shard, is_read_only=is_read_only)
    assert transaction.recovery_shard == "b"


@pytest.mark.parametrize(
    ("written", "path"),
    [
        ({}, CommitPath.NO_SHARDS),
        ({"a": True}, CommitPath.ONE_SHARD),
        ({"a": False}, CommitPath.ONE_SHARD),
        ({"a": False, "b": False}, CommitPath.READ_ONLY),
        ({"a": False, "b": True}, CommitPath.ONE_WRITER),
        ({"a": True, "b": False, "c": False}, CommitPath.ONE_WRITER),
        ({"a": True, "b": False, "c": True}, CommitPath.TWO_PHASES),
    ],
)
def test_commit_path_follows_from_the_participants(written: dict[str, bool], path: CommitPath) -> None:
    transaction = begun()
    for shard, has_written in written.items():
        transaction.join(shard)
        transaction.note_answer(shard, is_read_only=not has_written)
    plan = transaction.plan_commit()
    assert plan.path is path
    assert plan.shards == tuple(written)
    assert plan.writers == tuple(shard for shard, has_written in written.items() if has_written)
    assert not transaction.may_be_aborted


def test_commit_without_an_answer_of_each_participant_is_refused() -> None:
    transaction = begun()
    transaction.join("a")
    with pytest.raises(CommandError) as raised:
        transaction.plan_commit()
    assert raised.value.code == ErrorCode.NoSuchTransaction


def test_a_participant_that_has_written_stays_a_writer() -> None:
    transaction = begun()
    for shard, is_read_only in (("a", False), ("b", False), ("a", True)):
        transaction.join(shard)
        transaction.note_answer(shard, is_read_only=is_read_only)
    assert transaction.plan_commit().path is CommitPath.TWO_PHASES


def test_only_the_writer_is_asked_again_after_the_readers_have_committed() -> None:
    transaction = begun()
    for shard in SHARDS:
        transaction.join(shard)
        transaction.note_answer(shard, is_read_only=shard != "b")
    transaction.plan_commit()
    transaction.readers_committed()
    again = transaction.plan_commit()
    assert (again.path, again.shards) == (CommitPath.ONE_SHARD, ("b",))


class Histories(RuleBasedStateMachine):
    """Any course of statements: each request to a shard must fit the earlier ones."""

    def __init__(self) -> None:
        super().__init__()
        self.transaction = RouterTransaction(LSID, 1)
        self.started: dict[str, int] = {}
        self.wrote: list[str] = []

    @precondition(lambda self: self.transaction.phase is Phase.IN_PROGRESS)
    @rule()
    def statement(self) -> None:
        self.transaction.begin_statement()

    @precondition(lambda self: self.transaction.statement and self.transaction.phase is Phase.IN_PROGRESS)
    @rule(shard=st.sampled_from(SHARDS), answer=st.sampled_from([None, True, False]))
    def request(self, shard: str, answer: bool | None) -> None:
        sent = fields(self.transaction.join(shard))
        assert ("startTransaction" in sent) == (shard not in self.started) == ("readConcern" in sent)
        assert ("coordinator" in sent) == (not self.started)
        self.started.setdefault(shard, self.transaction.statement)
        if answer is not None:
            self.transaction.note_answer(shard, is_read_only=answer)
            if not answer and shard not in self.wrote:
                self.wrote.append(shard)

    @precondition(lambda self: self.transaction.statement and self.transaction.phase is Phase.IN_PROGRESS)
    @rule()
    def stale(self) -> None:
        may_restart = self.transaction.restart()
        assert not may_restart or (self.transaction.statement == 1 and len(self.started) <= 1 and not self.wrote)
        if may_restart:
            self.started.clear()

    @precondition(lambda self: self.transaction.statement and self.transaction.phase is Phase.IN_PROGRESS)
    @rule()
    def leave_after_an_error_about_a_view(self) -> None:
        for shard in [name for name, each in self.transaction.participants.items() if each.is_read_only is None]:
            del self.started[shard]
            self.transaction.leave(shard)

    @precondition(lambda self: self.transaction.phase is not Phase.ABORTED)
    @rule()
    def commit(self) -> None:
        try:
            plan = self.transaction.plan_commit()
        except CommandError:
            assert any(each.is_read_only is None for each in self.transaction.participants.values())
            return
        assert plan.shards == tuple(self.started)
        assert set(plan.writers) == set(self.wrote)
        assert (plan.path is CommitPath.TWO_PHASES) == (len(self.wrote) > 1)

    @invariant()
    def the_coordinator_takes_part(self) -> None:
        assert self.transaction.coordinator == next(iter(self.started), None)

    @invariant()
    def the_recovery_shard_has_written(self) -> None:
        assert self.transaction.recovery_shard in (*self.wrote, None)


TestHistories = Histories.TestCase
