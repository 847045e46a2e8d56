"""Aborts that get to mongod before the statement that begins the transaction, as when its router waits no longer."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import bson
import pytest
import trio
import trio.testing
from bson.binary import Binary
from bson.int64 import Int64

from shardwright.daemon.sidecar.user_write_block import GlobalLock
from shardwright.shardd.transactions.open_transactions import OpenTransaction, OpenTransactions
from shardwright.shardd.transactions.statements import TransactionEndings, TransactionStatements
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.message import op_msg
from shardwright.wire.request import Request
from shardwright.wire.transport.client import decode_reply
from tests.shardd.transactions.requests import request_of

if TYPE_CHECKING:
    from shardwright.daemon.sidecar.mongod import Upstream
    from shardwright.wire.transport.client_connection import ClientConnection

IDENTITY = {"lsid": {"id": Binary(bytes(16), 4)}, "txnNumber": Int64(1), "autocommit": False}
FIRST = {"delete": "c", "deletes": [{"q": {}, "limit": 1}], **IDENTITY, "startTransaction": True}
ABORT = {"abortTransaction": 1, **IDENTITY}


class Mongod:
    """A fake mongod with at most one transaction."""

    def __init__(self) -> None:
        self.is_open = False

    async def command(self, _: str, command: Mapping[str, Any]) -> dict[str, Any]:
        return decode_reply(await self.run(request_of(command)))

    async def run(self, request: Request) -> bytes:
        reply: dict[str, Any] = {"ok": 1.0, "n": 1}
        if request.name != "abortTransaction":
            self.is_open = True
        elif self.is_open:
            self.is_open = False
        else:
            reply = {"ok": 0.0, "code": ErrorCode.NoSuchTransaction, "codeName": "NoSuchTransaction"}
        return op_msg(bson.encode(reply), request_id=2, response_to=1)


def router(*, has_left: bool = False) -> "ClientConnection":
    return cast("ClientConnection", SimpleNamespace(app_name="", stream=SimpleNamespace(has_peer_left=has_left)))


def test_a_statement_that_is_read_after_the_abort_begins_nothing() -> None:
    """The router has closed its connection and sent the abort by another one, which was read first."""
    mongod, transactions = Mongod(), OpenTransactions(GlobalLock())
    statements, endings = TransactionStatements(transactions), TransactionEndings(transactions)

    async def main() -> None:
        async def run(request: Request, _: OpenTransaction | None = None) -> bytes:
            return await mongod.run(request)

        await endings.run(router(), request_of(ABORT), run)
        await statements.run(router(has_left=True), cast("Upstream", mongod), request_of(FIRST), run)

    with pytest.raises(CommandError) as raised:
        trio.run(main)
    assert raised.value.code == ErrorCode.ClientDisconnect
    assert not mongod.is_open
    assert not len(transactions)


@pytest.mark.parametrize("executed", [("statement", "abort"), ("abort", "statement")])
@pytest.mark.parametrize("answered", [("statement", "abort"), ("abort", "statement")])
def test_the_transaction_does_not_stay_open(executed: tuple[str, str], answered: tuple[str, str]) -> None:
    mongod, transactions = Mongod(), OpenTransactions(GlobalLock())
    client = router()
    statements, endings = TransactionStatements(transactions), TransactionEndings(transactions)

    async def main() -> None:
        replies: dict[str, bytes] = {}
        is_answered = {name: trio.Event() for name in answered}

        async def run(request: Request, _: OpenTransaction | None = None) -> bytes:
            name = "abort" if request.name == "abortTransaction" else "statement"
            await is_answered[name].wait()
            return replies[name]

        async def statement() -> None:
            with pytest.raises(CommandError) as raised:
                await statements.run(client, cast("Upstream", mongod), request_of(FIRST), run)
            assert raised.value.code == ErrorCode.Interrupted

        async with trio.open_nursery() as nursery:
            nursery.start_soon(statement)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(endings.run, client, request_of(ABORT), run)
            await trio.testing.wait_all_tasks_blocked()
            for name in executed:
                replies[name] = await mongod.run(request_of(FIRST if name == "statement" else ABORT))
            for name in answered:
                is_answered[name].set()
                await trio.testing.wait_all_tasks_blocked()

    trio.run(main)
    assert not mongod.is_open
    assert not len(transactions)
