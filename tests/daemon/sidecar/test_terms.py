"""A daemon's handling of step-up and step-down."""

from collections.abc import Callable

import trio
from bson import ObjectId
from trio.testing import wait_all_tasks_blocked

from shardwright.daemon.sidecar.hello import HelloMirror
from shardwright.daemon.sidecar.role_certainty import RoleCertainty, follow_role
from shardwright.daemon.sidecar.term_fence import Reign, reign_of_task

PROCESS = ObjectId()


class Recorder:
    """Hooks that record how they are called."""

    def __init__(self) -> None:
        self.events: list[str] = []

    async def on_step_up(self, term: int, nursery: trio.Nursery) -> None:
        self.events.append(f"up {term}")
        nursery.start_soon(self._work, term)

    def on_step_down(self) -> None:
        self.events.append("down")

    async def _work(self, term: int) -> None:
        try:
            await trio.sleep_forever()
        finally:
            self.events.append(f"work of {term} cancelled")


def observe(mirror: HelloMirror, counter: int, term: int | None) -> None:
    reply = {"topologyVersion": {"processId": PROCESS, "counter": counter}, "isWritablePrimary": term is not None}
    if term is not None:
        reply["electionId"] = ObjectId(f"7fffffff{term:016x}")
    mirror.meet(reply)


def events_of(*steps: Callable[[HelloMirror], None]) -> list[str]:
    """The calls of the hooks while a mongod goes through ``steps``."""
    recorder = Recorder()

    async def main() -> None:
        mirror = HelloMirror("m:1", "d:1")
        certainty = RoleCertainty(mirror, trio.sleep_forever)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(follow_role, mirror, certainty, recorder)
            for step in steps:
                await wait_all_tasks_blocked()
                step(mirror)
            await wait_all_tasks_blocked()
            recorder.events.append("end")
            nursery.cancel_scope.cancel()

    trio.run(main)
    return recorder.events[: recorder.events.index("end")]


def test_work_of_a_term_ends_before_the_step_down_hook() -> None:
    events = events_of(lambda mirror: observe(mirror, 1, 3), lambda mirror: observe(mirror, 2, None))
    assert events == ["up 3", "work of 3 cancelled", "down"]


def test_losing_mongod_counts_as_a_step_down() -> None:
    events = events_of(lambda mirror: observe(mirror, 1, 3), HelloMirror.lose)
    assert events == ["up 3", "work of 3 cancelled", "down"]


def test_a_new_term_is_a_new_step_up_even_without_a_pause() -> None:
    events = events_of(lambda mirror: observe(mirror, 1, 3), lambda mirror: observe(mirror, 2, 4))
    assert events == ["up 3", "work of 3 cancelled", "down", "up 4"]


def test_finding_mongod_again_in_the_same_term_is_a_new_step_up() -> None:
    events = events_of(lambda mirror: observe(mirror, 1, 3), HelloMirror.lose, lambda mirror: observe(mirror, 1, 3))
    assert events == ["up 3", "work of 3 cancelled", "down", "up 3"]


class Declaring(Recorder):
    """Hooks that record the reigns for which their term's work is declared."""

    def __init__(self) -> None:
        super().__init__()
        self.reigns: list[Reign | None] = []

    async def on_step_up(self, term: int, nursery: trio.Nursery) -> None:
        self.reigns.append(reign_of_task())


def test_each_step_up_begins_another_reign() -> None:
    hooks, between, present = Declaring(), list[Reign | None](), list[Reign | None]()

    async def main() -> None:
        mirror = HelloMirror("m:1", "d:1")
        certainty = RoleCertainty(mirror, trio.sleep_forever)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(follow_role, mirror, certainty, hooks)
            for _ in range(2):
                await wait_all_tasks_blocked()
                observe(mirror, 1, 3)
                between.append(await certainty.present_reign())
                await wait_all_tasks_blocked()
                present.append(await certainty.present_reign())
                mirror.lose()
                assert await certainty.present_reign() is None
            nursery.cancel_scope.cancel()

    trio.run(main)
    assert present == hooks.reigns
    reigns = [each for pair in zip(between, present, strict=True) for each in pair if each is not None]
    assert [each.term for each in reigns] == [3] * 4
    numbers = [each.number for each in reigns]
    assert numbers == sorted(set(numbers))


def test_a_change_that_does_not_affect_the_primary_calls_no_hook() -> None:
    events = events_of(lambda mirror: observe(mirror, 1, 3), lambda mirror: mirror.learn_sidecars({"x:1": "y:1"}))
    assert events == ["up 3"]


class LateStarter(Recorder):
    """Hooks whose nursery is used by others until the term is reported to be over, as daemons' requests do."""

    def __init__(self) -> None:
        super().__init__()
        self.nursery: trio.Nursery | None = None
        self.late = 0

    async def on_step_up(self, term: int, nursery: trio.Nursery) -> None:
        await super().on_step_up(term, nursery)
        self.nursery = nursery

    def on_step_down(self) -> None:
        self.nursery = None
        super().on_step_down()

    async def start_late(self) -> None:
        """Start a task whenever all tasks of the term have just ended."""
        while self.nursery is not None and self.late < 3:
            if not self.nursery.child_tasks:
                self.late += 1
                self.nursery.start_soon(trio.sleep_forever)
            await trio.lowlevel.checkpoint()


def test_requests_may_start_work_until_the_step_down_hook() -> None:
    hooks = LateStarter()

    async def main() -> None:
        mirror = HelloMirror("m:1", "d:1")
        certainty = RoleCertainty(mirror, trio.sleep_forever)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(follow_role, mirror, certainty, hooks)
            await wait_all_tasks_blocked()
            observe(mirror, 1, 3)
            await wait_all_tasks_blocked()
            observe(mirror, 2, None)
            await hooks.start_late()
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()

    for _ in range(20):  # the order in which tasks run is random
        hooks = LateStarter()
        trio.run(main)
        assert hooks.events == ["up 3", "work of 3 cancelled", "down"]


class Releasing(Recorder):
    """Hooks whose end of a term releases what requests wait for."""

    def __init__(self) -> None:
        super().__init__()
        self.released = trio.Event()

    def on_step_down(self) -> None:
        super().on_step_down()
        self.released.set()


def test_a_wait_of_a_request_is_cancelled_before_the_step_down_hook_could_end_it() -> None:
    hooks = Releasing()

    async def main() -> None:
        mirror = HelloMirror("m:1", "d:1")
        certainty = RoleCertainty(mirror, trio.sleep_forever)

        async def request() -> None:
            with certainty.while_role_lasts():
                await hooks.released.wait()
                hooks.events.append("went on")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(follow_role, mirror, certainty, hooks)
            await wait_all_tasks_blocked()
            observe(mirror, 1, 3)
            await wait_all_tasks_blocked()
            nursery.start_soon(request)
            await wait_all_tasks_blocked()
            observe(mirror, 2, None)
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()

    trio.run(main)
    assert hooks.events == ["up 3", "work of 3 cancelled", "down"]
