"""Running a piece of work once for concurrent callers, and again for callers that need a later run."""

from collections.abc import Coroutine, Generator
from types import coroutine
from typing import Any

import pytest
import trio
import trio.testing

from shardwright.daemon.single_flight import SingleFlight
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.transport.reactor import REACTOR, RequestLoop


class Work:
    """Returns how many times it has been started, once it is allowed to end."""

    def __init__(self) -> None:
        self.begun = 0
        self.may_end = trio.Event()

    async def __call__(self) -> int:
        self.begun += 1
        mine = self.begun
        await self.may_end.wait()
        return mine


def results(*ways: str) -> list[int]:
    """The results of callers that ask in these ways, one after another, while the first one's work is in progress."""
    found: dict[int, int] = {}

    async def main() -> None:
        work = Work()
        async with trio.open_nursery() as nursery:
            flights: SingleFlight[str, int] = SingleFlight(nursery)
            methods = {"run": flights.run, "after_now": flights.run_after_now}

            async def ask(number: int, way: str) -> None:
                found[number] = await methods[way]("key", work)

            for number, way in enumerate(ways):
                nursery.start_soon(ask, number, way)
                await trio.testing.wait_all_tasks_blocked()
            work.may_end.set()

    trio.run(main)
    return [found[number] for number in range(len(ways))]


def test_later_callers_get_the_result_of_the_run_in_progress() -> None:
    assert results("run", "run", "run") == [1, 1, 1]


def test_callers_that_need_a_new_run_share_one() -> None:
    assert results("run", "after_now", "run", "after_now") == [1, 2, 1, 2]


def test_a_new_run_starts_at_once_if_none_is_in_progress() -> None:
    assert results("after_now", "run") == [1, 1]


@coroutine
def rest_of(step: Coroutine[Any, Any, int]) -> Generator[Any, Any, int]:
    """Run a coroutine that has already been started to its end."""
    return (yield from step.__await__())


@pytest.mark.parametrize(("way", "expected"), [("run", 1), ("run_after_now", 2)])
async def test_a_run_in_progress_counts_when_a_caller_asks_in_the_reactor(
    monkeypatch: pytest.MonkeyPatch, way: str, expected: int
) -> None:
    """It may end before the caller is in its own task."""

    work = Work()
    async with trio.open_nursery() as nursery:
        flights: SingleFlight[str, int] = SingleFlight(nursery)
        nursery.start_soon(flights.run, "key", work)
        await trio.testing.wait_all_tasks_blocked()
        step = getattr(flights, way)("key", work)
        with monkeypatch.context() as reactor:
            reactor.setattr(REACTOR, "loop", RequestLoop(lambda: pytest.fail("no step is begun")))
            step.send(None)
        work.may_end.set()
        await trio.testing.wait_all_tasks_blocked()
        assert await rest_of(step) == expected
    assert work.begun == expected


@pytest.mark.parametrize("code", [ErrorCode.ShutdownInProgress, ErrorCode.InterruptedDueToReplStateChange])
def test_callers_learn_why_work_was_cancelled(code: ErrorCode) -> None:
    """Work of a term ends with the term, while the daemon continues."""

    async def main() -> CommandError:
        async with trio.open_nursery() as callers, trio.open_nursery() as owner:
            flights: SingleFlight[str, int] = SingleFlight(owner, cancelled=code)
            failures: list[CommandError] = []

            async def ask() -> None:
                with pytest.raises(CommandError) as failure:
                    await flights.run("key", Work())
                failures.append(failure.value)

            callers.start_soon(ask)
            await trio.testing.wait_all_tasks_blocked()
            owner.cancel_scope.cancel()
        return failures[0]

    assert trio.run(main).code == code
