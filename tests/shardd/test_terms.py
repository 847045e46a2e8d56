"""Term components: the order in which they begin and end, and retries after failures."""

from typing import TYPE_CHECKING, cast

import trio
from trio.testing import MockClock

from shardwright.shardd.shard_server import Terms
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError

if TYPE_CHECKING:
    from shardwright.shardd.context.shard_context import ShardContext


class FakeContext:
    """A context whose identity is known at once, and that records calls."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.sidecar = self
        self.certainty = self

    def settle(self, term: int | None) -> None:
        self.log.append(f"settle {term}")

    def forget_metadata(self) -> None:
        self.log.append("forget")

    async def wait_identified(self) -> None:
        self.log.append("identified")


class Component:
    """One that fails to begin a given number of times."""

    def __init__(self, name: str, log: list[str], failures: int = 0) -> None:
        self.name = name
        self.log = log
        self.failures = failures

    async def begin_term(self, term: int, nursery: trio.Nursery) -> None:
        self.log.append(f"{self.name} begins {term}")
        if self.failures:
            self.failures -= 1
            raise CommandError(ErrorCode.InterruptedAtShutdown, "not now")

    def end_term(self) -> None:
        self.log.append(f"{self.name} ends")


def test_components_begin_in_order_and_end_in_reverse() -> None:
    context = FakeContext()
    log = context.log
    first, second, third = Component("first", log), Component("second", log, failures=2), Component("third", log)
    terms = Terms(cast("ShardContext", context), (first, second, third))

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            await terms.on_step_up(7, nursery)

    trio.run(main, clock=MockClock(autojump_threshold=0))
    assert log[:3] == ["forget", "settle 7", "identified"]
    assert log[3:] == ["first begins 7", *["second begins 7"] * 3, "third begins 7"]
    log.clear()
    terms.on_step_down()
    assert log == ["third ends", "second ends", "first ends", "forget"]


def test_no_further_component_begins_in_a_term_that_is_over() -> None:
    context = FakeContext()
    log = context.log
    terms = Terms(cast("ShardContext", context), (Component("first", log, failures=10**6), Component("second", log)))

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(terms.on_step_up, 7, nursery)
            await trio.sleep(60)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=MockClock(autojump_threshold=0))
    assert "first begins 7" in log
    assert "second begins 7" not in log
