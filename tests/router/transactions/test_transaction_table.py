"""Sessions run one operation at a time, and there is a bound on how many are remembered."""

import bson
import pytest
import trio
import trio.testing
from bson.binary import Binary
from bson.int64 import Int64

from shardwright.router.transactions.router_transaction import Phase, RouterTransaction, TransactionFields
from shardwright.router.transactions.transaction_table import TransactionTable
from shardwright.sharding.logical_sessions import NO_USER, SessionId
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.message import OpMsg, op_msg
from shardwright.wire.request import Request

LSID = b"\5\0\0\0\0"


def test_operations_of_one_session_take_turns() -> None:
    table, order = TransactionTable(10), []

    async def operation(number: int) -> None:
        session = await table.check_out(b"s")
        order.append(("begins", number))
        await trio.testing.wait_all_tasks_blocked()
        order.append(("ends", number))
        session.check_in()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for number in range(3):
                nursery.start_soon(operation, number)

    trio.run(main)
    numbers = [number for _, number in order]
    assert [what for what, _ in order] == ["begins", "ends"] * 3
    assert numbers[::2] == numbers[1::2]


async def test_other_sessions_do_not_wait() -> None:
    table = TransactionTable(10)
    await table.check_out(b"a")
    with trio.fail_after(10):
        await table.check_out(b"b")


async def _use(table: TransactionTable, name: bytes, phase: Phase) -> None:
    session = await table.check_out(name)
    session.transaction = RouterTransaction(LSID, 1)
    session.transaction.phase = phase
    session.check_in()


async def test_oldest_session_that_is_over_makes_room() -> None:
    table = TransactionTable(2)
    for name in (b"a", b"b", b"c"):
        await _use(table, name, Phase.COMMITTED)
    assert list(table.sessions) == [b"b", b"c"]


async def test_open_transactions_make_no_room() -> None:
    table = TransactionTable(2)
    for name in (b"a", b"b"):
        await _use(table, name, Phase.IN_PROGRESS)
    with pytest.raises(CommandError) as raised:
        await table.check_out(b"c")
    assert raised.value.code == ErrorCode.TooManyLogicalSessions


async def test_sessions_of_two_users_have_nothing_in_common() -> None:
    """They may have the same UUID; a session without a user belongs to no user."""
    keys = {
        name: _fields(uid=uid).session
        for name, uid in {"none": None, "nobody": NO_USER, "first": b"1" * 32, "second": b"2" * 32}.items()
    }
    assert keys["none"] == keys["nobody"]
    assert len(set(keys.values())) == 3

    table = TransactionTable(10)
    for name, number in (("first", 7), ("second", 5)):
        session = await table.check_out(keys[name])
        assert session.transaction is None
        session.transaction = RouterTransaction(LSID, number)
        session.check_in()
    [killed] = table.open_in({SessionId(bytes(16), b"1" * 32).key})
    assert killed.number == 7


def _fields(uid: bytes | None) -> TransactionFields:
    lsid = {"id": Binary(bytes(16), 4), **({} if uid is None else {"uid": Binary(uid)})}
    body = bson.encode({"find": "c", "lsid": lsid, "txnNumber": Int64(1), "autocommit": False, "$db": "d"})
    return TransactionFields.of(Request(OpMsg(op_msg(body, request_id=1))))
