"""A daemon's certainty about its mongod's role after the process was paused."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest
import trio
from bson import ObjectId

from shardwright.daemon.sidecar.hello import HelloMirror
from shardwright.daemon.sidecar.role_certainty import PAUSE_SECONDS_MAX, SECONDARY_PAUSE_SECONDS_MAX, RoleCertainty
from shardwright.daemon.sidecar.term_fence import Reign, term_of_task, working_for

PROCESS = ObjectId()


def hello(counter: int, term: int) -> dict[str, Any]:
    return {
        "topologyVersion": {"processId": PROCESS, "counter": counter},
        "isWritablePrimary": True,
        "electionId": ObjectId(f"7fffffff{term:016x}"),
    }


class World:
    """A daemon whose clock the test advances, and its mongod."""

    def __init__(self) -> None:
        self.now = 100.0
        self.asked = 0
        self.answer = hello(1, term=3)
        self.mirror = HelloMirror("m:1", "d:1")
        self.mirror.meet(self.answer)
        self.certainty = RoleCertainty(self.mirror, self._ask, lambda: self.now)
        self.certainty.settle(3)
        self.while_asking: Callable[[], None] = lambda: None

    def pause(self, seconds: float = PAUSE_SECONDS_MAX * 1.5) -> None:
        self.now += seconds

    async def _ask(self) -> Mapping[str, Any]:
        self.asked += 1
        await trio.lowlevel.checkpoint()
        self.while_asking()
        return self.answer


@pytest.fixture
def world() -> World:
    return World()


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        with trio.fail_after(10):
            await work()

    trio.run(main)


def test_a_settled_role_is_certain(world: World) -> None:
    assert world.certainty.is_certain


def test_a_pause_is_noticed_on_use_even_before_the_task_runs(world: World) -> None:
    world.pause()
    assert not world.certainty.is_certain


def test_a_hello_after_the_pause_makes_it_certain_again(world: World) -> None:
    world.pause()
    run(world.certainty.wait_certain)
    assert world.certainty.is_certain
    assert world.asked == 1


def secondary(counter: int) -> dict[str, Any]:
    process = {"processId": PROCESS, "counter": counter}
    return {"topologyVersion": process, "isWritablePrimary": False, "secondary": True}


def test_a_secondary_catches_up_after_a_pause_before_it_is_certain(world: World) -> None:
    world.answer = secondary(2)
    world.mirror.meet(world.answer)
    world.certainty.settle(None)
    seen: list[bool] = []

    async def catch_up() -> None:
        await trio.lowlevel.checkpoint()
        seen.append(world.certainty.is_certain)

    world.certainty.catch_up_by(catch_up)
    assert world.certainty.is_certain
    world.pause()
    run(world.certainty.wait_certain)
    assert world.certainty.is_certain
    assert seen == [False]


def test_a_secondary_notices_shorter_pauses(world: World) -> None:
    world.pause(SECONDARY_PAUSE_SECONDS_MAX * 1.1)
    assert world.certainty.is_certain
    world.mirror.meet(secondary(2))
    world.certainty.settle(None)
    assert not world.certainty.is_certain


def test_a_primary_does_not_catch_up(world: World) -> None:
    async def catch_up() -> None:
        raise AssertionError

    world.certainty.catch_up_by(catch_up)
    world.pause()
    run(world.certainty.wait_certain)
    assert world.certainty.is_certain


def test_catching_up_is_not_part_of_the_term_of_the_task_that_notices_the_pause(world: World) -> None:
    """A task of a term that has ended during the pause: what catches up asks the mongod, whatever its term."""
    terms: list[int | None] = []

    async def catch_up() -> None:
        await trio.lowlevel.checkpoint()
        terms.append(term_of_task())

    async def work() -> None:
        with working_for(Reign(3, 0)):
            assert await world.certainty.present_reign() is None

    world.certainty.catch_up_by(catch_up)
    world.answer = secondary(2)
    world.pause()
    run(work)
    assert terms == [None]


def test_catching_up_ends_when_the_role_changes(world: World) -> None:
    """A secondary's reads must not replace newer state of a primary."""
    world.answer = secondary(2)
    world.mirror.meet(world.answer)

    async def catch_up() -> None:
        world.answer = hello(3, term=5)
        world.mirror.meet(world.answer)
        world.certainty.end_role()
        world.certainty.settle(5)
        await trio.sleep_forever()

    world.certainty.catch_up_by(catch_up)
    world.pause()
    run(world.certainty.wait_certain)
    assert world.certainty.is_certain


def test_another_term_is_known_but_not_settled(world: World) -> None:
    world.pause()
    world.answer = hello(2, term=5)

    async def present_reign() -> None:
        assert await world.certainty.present_reign() == Reign(5, 0)

    run(present_reign)
    assert not world.certainty.is_certain
    world.certainty.settle(5)
    assert world.certainty.is_certain


def test_a_change_of_term_is_uncertain_before_anybody_has_acted_on_it(world: World) -> None:
    world.mirror.observe(hello(2, term=4))
    assert not world.certainty.is_certain


def test_waits_until_the_new_term_is_settled(world: World) -> None:
    world.mirror.observe(hello(2, term=4))

    async def wait() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.certainty.wait_certain)
            await trio.testing.wait_all_tasks_blocked()
            world.certainty.settle(4)

    run(wait)
    assert world.asked == 0


def test_an_answer_received_after_another_pause_does_not_count(world: World) -> None:
    world.pause()
    pauses = iter([world.pause])
    world.while_asking = lambda: next(pauses, lambda: None)()
    run(world.certainty.wait_certain)
    assert world.asked == 2


def test_concurrent_waiters_share_one_hello(world: World) -> None:
    world.pause()

    async def wait() -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(world.certainty.wait_certain)

    run(wait)
    assert world.asked == 1


def test_waiting_within_a_role_is_cancelled_when_the_role_ends(world: World) -> None:
    ended: list[str] = []

    async def wait_for_what_never_comes() -> None:
        with world.certainty.while_role_lasts():
            await trio.sleep_forever()
        ended.append("role")

    async def end() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait_for_what_never_comes)
            await trio.testing.wait_all_tasks_blocked()
            world.certainty.end_role()

    run(end)
    assert ended == ["role"]
