"""Commands at the end of a transaction, and the effects of their replies."""

from collections.abc import Mapping
from typing import Any, cast

import bson
import pytest
import trio
from bson.binary import Binary

from shardwright.router.replies.shard_reply import ShardReply
from shardwright.router.sending.shard_sender import ShardSender
from shardwright.router.transactions.commit_and_abort import abort_explicitly, abort_implicitly, commit, recover
from shardwright.router.transactions.router_transaction import Phase, RouterTransaction
from shardwright.router.transactions.transaction_table import TransactionStatistics
from shardwright.wire.errors import CommandError
from shardwright.wire.message import OpMsg, op_msg
from shardwright.wire.rawbson import encode_elements

LSID = bson.encode({"id": Binary(bytes(16), 4)})
MAJORITY = encode_elements({"writeConcern": {"w": "majority"}})
OK = {"ok": 1.0}


class Shards:
    """Fake shards that answer from a script and record the requests.

    Attributes:
        answers: the replies to each command of each shard, in turn; the last one stays.
        asked: the commands by name and shard, in their order.
        commands: all of them, decoded.
    """

    def __init__(self, answers: Mapping[tuple[str, str], list[dict[str, Any]]] | None = None) -> None:
        self.answers = dict(answers or {})
        self.asked: list[tuple[str, str]] = []
        self.commands: list[dict[str, Any]] = []

    async def send(self, shard_id: str, frame: bytes, **_: object) -> ShardReply:
        command = bson.decode(OpMsg(frame).body)
        name = next(iter(command))
        self.asked.append((name, shard_id))
        self.commands.append(command)
        answers = self.answers.get((name, shard_id), [OK])
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        return ShardReply(shard_id, "host:1", op_msg(bson.encode(answer), request_id=1))

    async def send_to_all(self, frames: Mapping[str, bytes], replies: dict[str, ShardReply]) -> None:
        for shard, frame in frames.items():
            replies[shard] = await self.send(shard, frame)

    def commit(self, transaction: RouterTransaction) -> ShardReply | None:
        return trio.run(commit, self._sender, transaction, MAJORITY)

    @property
    def _sender(self) -> ShardSender:
        return cast("ShardSender", self)


def transaction_of(**has_written: bool) -> RouterTransaction:
    """A transaction with these participants."""
    transaction = RouterTransaction(LSID, 3)
    transaction.begin_statement()
    for shard, wrote in has_written.items():
        transaction.join(shard)
        transaction.note_answer(shard, is_read_only=not wrote)
    return transaction


def failure(code: int, **more: object) -> dict[str, Any]:
    return {"ok": 0.0, "code": code, "errmsg": "why", **more}


def test_nothing_is_sent_without_participants() -> None:
    shards, transaction = Shards(), transaction_of()
    assert shards.commit(transaction) is None
    assert shards.asked == []
    assert transaction.phase is Phase.COMMITTED


def test_one_shard_gets_the_write_concern() -> None:
    shards = Shards()
    shards.commit(transaction_of(a=True))
    [command] = shards.commands
    assert command.keys() == {*("commitTransaction", "lsid", "txnNumber", "autocommit", "writeConcern", "$db")}
    assert command["$db"] == "admin"


def test_readers_commit_each() -> None:
    shards = Shards()
    shards.commit(transaction_of(a=False, b=False))
    assert shards.asked == [("commitTransaction", "a"), ("commitTransaction", "b")]


def test_readers_commit_before_the_only_writer() -> None:
    shards, transaction = Shards(), transaction_of(a=False, b=True, c=False)
    shards.commit(transaction)
    assert [shard for _, shard in shards.asked] == ["a", "c", "b"]
    assert transaction.phase is Phase.COMMITTED


@pytest.mark.parametrize("code", [251, 6, 10107, 50])
def test_failure_of_a_reader_aborts_the_writer(code: int) -> None:
    shards, transaction = Shards({("commitTransaction", "a"): [failure(code)]}), transaction_of(a=False, b=True)
    with pytest.raises(CommandError) as raised:
        shards.commit(transaction)
    assert raised.value.code == 251
    assert raised.value.labels == ("TransientTransactionError",)
    assert shards.asked == [("commitTransaction", "a"), ("abortTransaction", "a"), ("abortTransaction", "b")]
    assert transaction.phase is Phase.ABORTED


def test_only_the_writer_is_asked_again() -> None:
    shards, transaction = Shards({("commitTransaction", "b"): [failure(10107), OK]}), transaction_of(a=False, b=True)
    with pytest.raises(CommandError):
        shards.commit(transaction)
    assert transaction.phase is Phase.COMMITTING
    shards.commit(transaction)
    assert [shard for _, shard in shards.asked] == ["a", "b", "b"]


def test_two_writers_commit_through_the_coordinator() -> None:
    shards, transaction = Shards(), transaction_of(a=False, b=True, c=True)
    shards.commit(transaction)
    [command] = shards.commands
    assert shards.asked == [("coordinateCommitTransaction", "a")]
    assert command["participants"] == [{"shardId": "a"}, {"shardId": "b"}, {"shardId": "c"}]


@pytest.mark.parametrize("code", [6, 10107, 50, 64, 225, 262, 91, 11601, 133, 70, 24, 267, 72])
def test_unknown_outcome_has_the_same_sent_again(code: int) -> None:
    name = "coordinateCommitTransaction"
    shards, transaction = Shards({(name, "a"): [failure(code), OK]}), transaction_of(a=True, b=True)
    with pytest.raises(CommandError):
        shards.commit(transaction)
    assert not transaction.may_be_aborted
    shards.commit(transaction)
    assert shards.asked == [(name, "a"), (name, "a")]
    assert transaction.phase is Phase.COMMITTED


def test_write_concern_error_has_the_same_sent_again() -> None:
    lagging = {**OK, "writeConcernError": {"code": 64, "errmsg": "waiting"}}
    shards, transaction = Shards({("commitTransaction", "a"): [lagging, OK]}), transaction_of(a=True)
    reply = shards.commit(transaction)
    assert reply is not None
    assert b"writeConcernError" in reply.fields
    assert not transaction.may_be_aborted
    shards.commit(transaction)
    assert transaction.phase is Phase.COMMITTED


@pytest.mark.parametrize(("code", "is_over"), [(251, True), (246, False), (15, False), (10334, False), (17280, False)])
def test_refusal_is_final(code: int, *, is_over: bool) -> None:
    shards, transaction = Shards({("commitTransaction", "a"): [failure(code)]}), transaction_of(a=True)
    with pytest.raises(CommandError):
        shards.commit(transaction)
    assert transaction.phase is Phase.ABORTED
    assert shards.asked == [("commitTransaction", "a"), *([] if is_over else [("abortTransaction", "a")])]


def test_refusal_of_a_second_attempt_says_nothing_about_the_first() -> None:
    """A client that received an abort would execute the transaction once more."""
    answers = [failure(6), failure(391), OK]
    shards, transaction = Shards({("commitTransaction", "a"): answers}), transaction_of(a=True)
    for code in (6, 391):
        with pytest.raises(CommandError) as raised:
            shards.commit(transaction)
        assert raised.value.code == code
        assert transaction.phase is Phase.COMMITTING
    shards.commit(transaction)
    assert shards.asked == [("commitTransaction", "a")] * 3
    assert transaction.phase is Phase.COMMITTED


def test_two_phase_commit_that_never_ran_leaves_no_participant_open() -> None:
    """The coordinator has lost its part, as after a restart, and has not prepared any participant."""
    name = "coordinateCommitTransaction"
    shards, transaction = Shards({(name, "a"): [failure(251)]}), transaction_of(a=True, b=True, c=False)
    with pytest.raises(CommandError) as raised:
        shards.commit(transaction)
    assert raised.value.code == 251
    assert shards.asked == [(name, "a"), *(("abortTransaction", shard) for shard in "abc")]
    assert transaction.phase is Phase.ABORTED


def test_failed_commit_of_a_reader_leaves_no_participant_open() -> None:
    shards, transaction = Shards({("commitTransaction", "a"): [failure(251)]}), transaction_of(a=False, b=False)
    with pytest.raises(CommandError):
        shards.commit(transaction)
    assert shards.asked[2:] == [("abortTransaction", "a"), ("abortTransaction", "b")]


def test_participant_without_an_answer_has_all_aborted() -> None:
    shards, transaction = Shards(), transaction_of(a=True)
    transaction.join("b")
    with TransactionStatistics().commit(transaction), pytest.raises(CommandError) as raised:
        shards.commit(transaction)
    assert raised.value.code == 251
    assert shards.asked == [("abortTransaction", "a"), ("abortTransaction", "b")]
    assert transaction.phase is Phase.ABORTED


def test_outcome_is_asked_of_the_recovery_shard() -> None:
    shards = Shards()
    trio.run(recover, shards._sender, "b", LSID, 3, MAJORITY)
    [command] = shards.commands
    assert shards.asked == [("coordinateCommitTransaction", "b")]
    assert command["participants"] == []
    assert command["txnNumber"] == 3


def test_explicit_abort_goes_to_all_and_the_first_error_wins() -> None:
    shards = Shards({("abortTransaction", "b"): [failure(251)], ("abortTransaction", "c"): [failure(6)]})
    with pytest.raises(CommandError) as raised:
        trio.run(abort_explicitly, shards._sender, transaction_of(a=True, b=True, c=True), MAJORITY)
    assert raised.value.code == 251
    assert [shard for _, shard in shards.asked] == ["a", "b", "c"]


def test_implicit_abort_ignores_failures() -> None:
    shards, transaction = Shards({("abortTransaction", "a"): [failure(6)]}), transaction_of(a=True, b=True)
    trio.run(abort_implicitly, shards._sender, transaction)
    assert transaction.phase is Phase.ABORTED
    assert all(command["writeConcern"] == {"w": 1} for command in shards.commands)


def test_no_implicit_abort_once_a_commit_has_begun() -> None:
    shards, transaction = Shards(), transaction_of(a=True)
    transaction.plan_commit()
    trio.run(abort_implicitly, shards._sender, transaction)
    assert shards.asked == []
