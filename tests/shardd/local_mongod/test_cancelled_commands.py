"""Commands that a cancelled task has sent: mongod may still execute them, after what is done next."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final
from uuid import uuid4

import pytest
import trio
import trio.testing
from bson.timestamp import Timestamp

from shardwright.daemon.sidecar.user_write_block import GlobalLock
from shardwright.shardd.local_mongod.local_collections import create_with_uuid
from shardwright.shardd.orphans.range_deletion_tasks import CLEAN_NOW, KeyRange, RangeDeletionStore, RangeDeletionTask
from shardwright.sharding.namespace import Namespace
from tests.shardd.orphans.test_orphan_ranges import bound

LATE: Final = frozenset({"insert", "applyOps"})


class LateMongod:
    """Executes some commands only when it may, even if the task that sent them no longer waits.

    Attributes:
        unexecuted: the commands that it has received but not executed.
    """

    def __init__(self, nursery: trio.Nursery) -> None:
        self.global_lock = GlobalLock()
        self.unexecuted: list[str] = []
        self.may_execute = trio.Event()
        self._nursery = nursery

    async def write(self, db: str, command: Mapping[str, Any]) -> dict[str, Any]:
        return await self.command(db, command)

    async def command(self, _db: str, command: Mapping[str, Any]) -> dict[str, Any]:
        await trio.lowlevel.checkpoint()
        name = next(iter(command))
        if name in LATE:
            executed = trio.Event()
            self.unexecuted.append(name)
            self._nursery.start_soon(self._execute, name, executed)
            await executed.wait()
        return {"ok": 1.0, "cursor": {"firstBatch": []}}

    async def _execute(self, name: str, executed: trio.Event) -> None:
        await self.may_execute.wait()
        self.unexecuted.remove(name)
        executed.set()


async def insert_range_deletion(mongod: Any) -> None:  # noqa: ANN401 - a fake
    bounds = KeyRange(bound(0), bound(10))
    task = RangeDeletionTask(uuid4(), "d.c", uuid4(), "other", bounds, True, CLEAN_NOW, Timestamp(1, 1))
    await RangeDeletionStore(mongod).insert(task)


async def create_collection(mongod: Any) -> None:  # noqa: ANN401 - a fake
    await create_with_uuid(mongod, Namespace("d", "c"), uuid4(), {}, None)


@pytest.mark.parametrize("work", [insert_range_deletion, create_collection])
async def test_a_cancelled_task_ends_after_its_command(work: Callable[[Any], Awaitable[None]]) -> None:
    """Otherwise the abort of a migration would not find the range deletion, and a drop not the collection."""
    scope, left = trio.CancelScope(), []

    async def run(mongod: LateMongod) -> None:
        with scope:
            await work(mongod)
        left.append(list(mongod.unexecuted))

    async with trio.open_nursery() as nursery:
        mongod = LateMongod(nursery)
        nursery.start_soon(run, mongod)
        await trio.testing.wait_all_tasks_blocked()
        assert mongod.unexecuted
        scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        mongod.may_execute.set()
    assert left == [[]]
