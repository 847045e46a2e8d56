"""The router's own transactions: repeated after passing failures, and committed again while the outcome is unknown."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import bson
import pytest
import trio
import trio.testing

from shardwright.daemon.internal_transaction import ATTEMPTS_MAX
from shardwright.router.replies.shard_reply import ShardReply
from shardwright.router.transactions.internal_transaction import run_internal_transaction
from shardwright.router.transactions.router_transaction import RouterTransaction
from shardwright.wire.errors import CommandError
from shardwright.wire.message import OpMsg, reply_document
from shardwright.wire.read_preference import PRIMARY, ReadPreference

if TYPE_CHECKING:
    from shardwright.router.sending.shard_sender import ShardSender

TRANSIENT = ("TransientTransactionError",)
LSID = bson.encode({"id": 1})
OK: dict[str, Any] = {"ok": 1.0}


def failed(code: int, *labels: str) -> dict[str, Any]:
    return {"ok": 0.0, "code": code, "errmsg": "no", "errorLabels": list(labels)}


class FakeSender:
    """Answers commits and aborts, and keeps a log of them.

    Args:
        answer: the reply to the commit with a number, counted from 0.
    """

    def __init__(self, answer: Callable[[int], dict[str, Any]] = lambda number: OK) -> None:
        self.log: list[tuple[str, int]] = []
        self._answer = answer

    async def send_to_all(
        self, frames: dict[str, bytes], replies: dict[str, ShardReply], *, preference: ReadPreference = PRIMARY
    ) -> None:
        """Answer as `ShardSender` does."""
        for shard, frame in frames.items():
            command = bson.decode(OpMsg(frame).body)
            name = next(iter(command))
            commits = sum(each == "commitTransaction" for each, _ in self.log)
            self.log.append((name, command["txnNumber"]))
            reply = self._answer(commits) if name == "commitTransaction" else OK
            replies[shard] = ShardReply(shard, "host", reply_document(1, reply))


def run(
    sender: FakeSender, failures: list[CommandError] | None = None, number: int | None = None
) -> tuple[Any, list[int]]:
    """The result of a transaction on one shard, and the numbers of its attempts."""
    numbers: list[int] = []

    async def statements(transaction: RouterTransaction) -> str:
        transaction.begin_statement()
        transaction.join("sh0")
        numbers.append(transaction.number)
        if failures:
            raise failures.pop(0)
        transaction.note_answer("sh0", is_read_only=False)
        return "done"

    async def main() -> str:
        result, _ = await run_internal_transaction(cast("ShardSender", sender), LSID, statements, number=number)
        return result

    return trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0)), numbers


def test_a_transaction_that_succeeds() -> None:
    sender = FakeSender()
    assert run(sender) == ("done", [0])
    assert sender.log == [("commitTransaction", 0)]


@pytest.mark.parametrize("error", [CommandError(112, "conflict", labels=TRANSIENT), CommandError(6, "unreachable")])
def test_passing_failures_of_statements_begin_another_attempt(error: CommandError) -> None:
    sender = FakeSender()
    assert run(sender, [error, error]) == ("done", [0, 1, 2])
    assert sender.log == [("abortTransaction", 0), ("abortTransaction", 1), ("commitTransaction", 2)]


def test_other_failures_of_statements_end_it() -> None:
    sender = FakeSender()
    with pytest.raises(CommandError, match="duplicate"):
        run(sender, [CommandError(11000, "duplicate")])
    assert sender.log == [("abortTransaction", 0)]


def test_a_commit_whose_outcome_is_unknown_is_sent_again() -> None:
    sender = FakeSender(lambda number: failed(91) if number < 3 else OK)
    assert run(sender) == ("done", [0])
    assert sender.log == [("commitTransaction", 0)] * 4


def test_a_commit_that_is_cancelled_is_followed_by_an_abort() -> None:
    class SilentSender(FakeSender):
        async def send_to_all(
            self, frames: dict[str, bytes], replies: dict[str, ShardReply], *, preference: ReadPreference = PRIMARY
        ) -> None:
            await super().send_to_all(frames, replies, preference=preference)
            if self.log[-1][0] == "commitTransaction":
                await trio.sleep_forever()

    sender = SilentSender()

    async def statements(transaction: RouterTransaction) -> None:
        transaction.begin_statement()
        transaction.join("sh0")
        transaction.note_answer("sh0", is_read_only=False)

    async def main() -> None:
        with trio.move_on_after(1):
            await run_internal_transaction(cast("ShardSender", sender), LSID, statements)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert sender.log == [("commitTransaction", 0), ("abortTransaction", 0)]


def test_an_aborted_commit_begins_another_attempt() -> None:
    sender = FakeSender(lambda number: OK if number else failed(251, *TRANSIENT))
    assert run(sender) == ("done", [0, 1])
    assert sender.log == [("commitTransaction", 0), ("commitTransaction", 1)]


def test_a_given_number_is_used_once() -> None:
    sender = FakeSender(lambda number: OK if number else failed(91))
    assert run(sender, number=7) == ("done", [7])
    assert sender.log == [("commitTransaction", 7)] * 2
    with pytest.raises(CommandError, match="conflict"):
        run(FakeSender(), [CommandError(112, "conflict", labels=TRANSIENT)], number=7)


def test_there_is_a_limit_and_the_client_knows_of_no_transaction() -> None:
    conflict = [CommandError(112, "conflict", labels=TRANSIENT) for _ in range(ATTEMPTS_MAX)]
    with pytest.raises(CommandError, match="conflict") as raised:
        run(FakeSender(), conflict)
    assert raised.value.labels == ()
    assert not conflict
