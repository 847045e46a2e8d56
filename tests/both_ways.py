"""Running code that may begin in the reactor, both there and in a task of trio's."""

from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

import pytest
import trio

from shardwright.wire.transport.reactor import REACTOR, RequestLoop

T = TypeVar("T")

WAYS = ("trio", "reactor")
_way = WAYS[0]


@pytest.fixture(params=WAYS)
def both_ways_of_running(request: pytest.FixtureRequest) -> Iterator[None]:
    """Have `run` do each test's work in a task of trio's, and in the reactor."""
    global _way
    _way = request.param
    yield
    _way = WAYS[0]


def run(work: Callable[[], Awaitable[T]]) -> T:
    """The result of ``work()``, done the way that the test is run; in the reactor, as a step of a request loop."""
    results: list[T] = []

    async def step() -> bool:
        results.append(await work())
        return False

    async def main() -> None:
        if _way == "reactor":
            assert REACTOR.start()
        await RequestLoop(step).run()

    trio.run(main)
    return results[0]
