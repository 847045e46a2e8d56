"""A member that has stepped down follows its oplog once the work of its term has ended."""

from collections.abc import Mapping
from typing import Any

import trio
from bson import ObjectId
from trio.testing import wait_all_tasks_blocked

from shardwright.daemon.sidecar.hello import HelloMirror
from shardwright.daemon.sidecar.role_certainty import RoleCertainty, follow_role
from shardwright.shardd.metadata.refresh import CacheWatch
from shardwright.shardd.orphans.range_deletion_tasks import RangeDeletionTasks
from shardwright.wire.errors import BackendError
from shardwright.wire.transport.client import Connection

PROCESS = ObjectId()


def hello(counter: int, term: int | None) -> dict[str, Any]:
    reply = {"topologyVersion": {"processId": PROCESS, "counter": counter}, "secondary": term is None}
    return {**reply, "isWritablePrimary": True, "electionId": ObjectId(f"7fffffff{term:016x}")} if term else reply


class SlowEnd:
    """The hooks of a daemon whose last task of a term takes a while to end."""

    def __init__(self, tasks: RangeDeletionTasks) -> None:
        self.may_end = trio.Event()
        self._tasks = tasks

    async def on_step_up(self, term: int, nursery: trio.Nursery) -> None:
        self._tasks.set_loaded()
        nursery.start_soon(self._work)

    def on_step_down(self) -> None:
        self._tasks.unload()

    async def _work(self) -> None:
        with trio.move_on_after(5, shield=True):
            await self.may_end.wait()


async def test_what_a_secondary_has_read_is_not_forgotten_at_the_end_of_its_term() -> None:
    """Otherwise it refreshes no metadata until its next election, and its reads wait for that."""
    mirror, tasks = HelloMirror("m:1", "d:1"), RangeDeletionTasks(lambda _: None)
    certainty, hooks, opened = RoleCertainty(mirror, trio.sleep_forever), SlowEnd(tasks), trio.Event()

    async def open_connection() -> Connection:
        tasks.set_loaded()  # as the watch does once it follows the oplog
        opened.set()
        raise BackendError("m:1", "that is all", sent=False)

    async def ignore(_: Mapping[str, Any]) -> None:
        raise AssertionError

    watch = CacheWatch(
        mirror,
        certainty,
        open_connection,
        on_collection=lambda _: None,
        on_database=lambda _: None,
        on_range_deletion=ignore,
        on_rename=lambda _: None,
        on_gap=trio.lowlevel.checkpoint,
    )

    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(follow_role, mirror, certainty, hooks)
            nursery.start_soon(watch.run)
            mirror.meet(hello(1, term=3))
            await wait_all_tasks_blocked()
            mirror.meet(hello(2, term=None))
            await wait_all_tasks_blocked()
            assert not opened.is_set()
            hooks.may_end.set()
            await opened.wait()
            await wait_all_tasks_blocked()
            await tasks.wait_loaded()
            nursery.cancel_scope.cancel()


async def test_who_waits_for_range_deletions_is_not_forgotten_when_a_term_ends_before_they_are_read() -> None:
    tasks = RangeDeletionTasks(lambda _: None)

    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tasks.wait_loaded)
            await wait_all_tasks_blocked()
            tasks.unload()
            tasks.set_loaded()
