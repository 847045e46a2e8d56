"""Sessions run one operation at a time, and there is a bound on how many are remembered."""

import pytest
import trio
import trio.testing

from shardwright.router.transactions.router_transaction import Phase, RouterTransaction
from shardwright.router.transactions.transaction_table import TransactionTable
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError

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


def test_other_sessions_do_not_wait() -> None:
    async def main() -> None:
        table = TransactionTable(10)
        await table.check_out(b"a")
        with trio.fail_after(10):
            await table.check_out(b"b")

    trio.run(main)


async def _use(table: TransactionTable, name: bytes, phase: Phase) -> None:
    session = await table.check_out(name)
    session.transaction = RouterTransaction(LSID, 1)
    session.transaction.phase = phase
    session.check_in()


def test_oldest_session_that_is_over_makes_room() -> None:
    async def main() -> None:
        table = TransactionTable(2)
        for name in (b"a", b"b", b"c"):
            await _use(table, name, Phase.COMMITTED)
        assert list(table.sessions) == [b"b", b"c"]

    trio.run(main)


def test_open_transactions_make_no_room() -> None:
    async def main() -> None:
        table = TransactionTable(2)
        for name in (b"a", b"b"):
            await _use(table, name, Phase.IN_PROGRESS)
        with pytest.raises(CommandError) as raised:
            await table.check_out(b"c")
        assert raised.value.code == ErrorCode.TooManyLogicalSessions

    trio.run(main)
