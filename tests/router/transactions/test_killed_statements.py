"""A transaction that is killed during a statement that adds another shard."""

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import bson
import pytest
import trio
from bson.binary import Binary
from bson.int64 import Int64

from shardwright.router.commands.router_commands import ROUTER_COMMANDS
from shardwright.router.commands.transactions import in_transaction
from shardwright.router.cursors.manager import CursorManager
from shardwright.router.replies.reply_builder import Reply
from shardwright.router.transactions.commit_and_abort import abort_implicitly
from shardwright.router.transactions.router_transaction import Phase, RouterTransaction
from shardwright.router.transactions.transaction_sender import TransactionSender
from shardwright.router.transactions.transaction_table import TransactionTable
from shardwright.wire.errors import CommandError
from shardwright.wire.message import OpMsg, op_msg
from shardwright.wire.request import Request
from tests.router.transactions.test_commit import Shards
from tests.transports import new_transport

if TYPE_CHECKING:
    from shardwright.router.operations.operation import Operation
    from shardwright.router.sending.shard_sender import ShardSender

FIRST: dict[str, Any] = {
    "find": "c",
    "lsid": {"id": Binary(bytes(16), 4)},
    "txnNumber": Int64(1),
    "autocommit": False,
    "startTransaction": True,
    "$db": "d",
}


class KilledOperation:
    """A statement on two shards, whose session is killed after the first of them has answered.

    Args:
        failure: the error of the statement, if it fails.
    """

    def __init__(self, failure: CommandError | None = None) -> None:
        self.shards = Shards()
        self.sender = cast("ShardSender", self.shards)
        self.begun_session = None
        cursors = CursorManager(new_transport().unread_replies.holdings)
        self.context = SimpleNamespace(transactions=TransactionTable(10), sender=self.sender, cursors=cursors)
        self.client = SimpleNamespace(id=1, peer="", metadata=None)
        self.user = b""
        self.request = Request(OpMsg(op_msg(bson.encode(FIRST), request_id=1)))
        self.transaction: RouterTransaction | None = None
        self._failure = failure

    def enter(self, transaction: RouterTransaction) -> None:
        self.transaction = transaction

    def run(self) -> Reply:
        return trio.run(in_transaction(ROUTER_COMMANDS["find"], self._statement), cast("Operation", self))

    async def _statement(self, _: object) -> Reply:
        transaction = self.transaction
        assert transaction is not None
        transaction.join("a")
        transaction.note_answer("a", is_read_only=False)
        transaction.join("b")  # is sent, and arrives there after the abort
        await abort_implicitly(self.sender, transaction)
        if self._failure is not None:
            raise self._failure
        return {}


@pytest.mark.parametrize("failure", [None, CommandError(2, "why")])
def test_part_that_began_after_the_kill_is_aborted(failure: CommandError | None) -> None:
    operation = KilledOperation(failure)
    with pytest.raises(CommandError) as raised:
        operation.run()
    assert raised.value.code == (11601 if failure is None else failure.code)
    both = [("abortTransaction", "a"), ("abortTransaction", "b")]
    assert operation.shards.asked == both + both  # when it is killed, and after the statement


def test_no_shard_joins_a_killed_transaction() -> None:
    transaction = RouterTransaction(bson.encode(FIRST["lsid"]), 1)
    transaction.phase = Phase.ABORTED
    sender = TransactionSender.__new__(TransactionSender)
    sender.transaction, sender._starting, sender._expected = transaction, {}, {}
    with pytest.raises(CommandError) as raised:
        trio.run(sender.send, "a", b"")
    assert raised.value.code == 11601
    assert not transaction.participants
