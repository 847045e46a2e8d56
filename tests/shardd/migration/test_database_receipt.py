"""The end of an attempt to receive a database, which decides whether its donor begins another one."""

from typing import Any
from unittest.mock import MagicMock

import pytest
import trio
import trio.testing

from shardwright.shardd.migration.recipient import database_receipt
from shardwright.shardd.migration.recipient.database_receipt import DatabaseReceipt
from shardwright.wire.error_codes import ErrorCode


@pytest.mark.parametrize(
    ("is_ended_by_donor", "code"),
    [(True, ErrorCode.Interrupted), (False, ErrorCode.InterruptedDueToReplStateChange)],
)
def test_the_end_of_the_term_is_told_from_that_of_the_move(
    monkeypatch: pytest.MonkeyPatch, is_ended_by_donor: bool, code: ErrorCode
) -> None:
    async def receive(*_: Any, **__: Any) -> None:  # noqa: ANN401 - whatever it would run
        await trio.sleep_forever()

    async def nothing(_: DatabaseReceipt) -> None:
        """No transaction was cut off."""

    for name in ("DatabaseLink", "HistoryPull"):
        monkeypatch.setattr(database_receipt, name, MagicMock())
    monkeypatch.setattr(database_receipt, "run_together", receive)
    monkeypatch.setattr(DatabaseReceipt, "_end_cut_off_transactions", nothing)

    async def main() -> DatabaseReceipt:
        receipt = DatabaseReceipt(MagicMock(), MagicMock(), MagicMock(db="moved"))
        async with trio.open_nursery() as term:
            term.start_soon(receipt.run)
            await trio.testing.wait_all_tasks_blocked()
            if is_ended_by_donor:
                await receipt.end()
            term.cancel_scope.cancel()
        return receipt

    receipt = trio.run(main)
    assert receipt.error is not None
    assert receipt.error.code == code
