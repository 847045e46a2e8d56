"""Logging of refused connections."""

import logging

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from shardwright.wire.transport.accepting import RefusalLog


def counts(caplog: pytest.LogCaptureFixture) -> list[int]:
    return [vars(record)["fields"]["refused_count"] for record in caplog.records]


async def test_one_line_per_second_reports_the_number_of_refusals(
    caplog: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    caplog.set_level(logging.WARNING)
    refusals = RefusalLog()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(refusals.run)
        refusals.note("1.2.3.4:5", 10)
        await wait_all_tasks_blocked()
        assert counts(caplog) == [1]
        for _ in range(4_902):
            refusals.note("1.2.3.4:6", 10)
        await trio.sleep(0.9)
        assert counts(caplog) == [1]
        await trio.sleep(0.2)
        assert counts(caplog) == [1, 4_902]
        await trio.sleep(60)
        assert counts(caplog) == [1, 4_902]
        refusals.note("1.2.3.4:7", 10)
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert counts(caplog) == [1, 4_902, 1]
    assert refusals.refused == 4_904
    assert vars(caplog.records[1])["fields"]["remote"] == "1.2.3.4:6"
