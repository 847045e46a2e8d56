"""Registering ranges and waiting before they are deleted, with simulated members and a mock clock."""

import time
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
import trio
from bson.timestamp import Timestamp
from trio.testing import MockClock

from shardwright.daemon.metrics import Metrics
from shardwright.shardd.orphans.ownership_filter import OwnershipFilter
from shardwright.shardd.orphans.range_deletion_tasks import (
    CLEAN_DELAYED,
    KeyRange,
    KnownDeletion,
    RangeDeletionTask,
    RangeDeletionTasks,
)
from shardwright.shardd.range_deleter import range_deleter, range_deleter_service
from shardwright.shardd.range_deleter.range_deleter import RangeDeleter
from shardwright.shardd.range_deleter.range_deleter_service import RangeDeletions
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from tests.shardd.orphans.test_orphan_ranges import UUID_NOW, bound, table

DELAY = 10
WAITS_MAX = DELAY + 8 * DELAY
BEGAN = 1_700_000_000


def task(*, donor: str = "other", pending: bool = False, timestamp: int | None = None) -> RangeDeletionTask:
    ready = None if timestamp is None else Timestamp(timestamp, 1)
    bounds = KeyRange(bound(0), bound(10))
    return RangeDeletionTask(uuid4(), "d.c", UUID_NOW, donor, bounds, pending, CLEAN_DELAYED, ready)


class Shard:
    """The parts of a shard that range deletions use; a cursor on its other member never ends."""

    def __init__(self) -> None:
        self.metrics = Metrics("shardd", frozenset())
        self.range_deletion_tasks = RangeDeletionTasks(lambda _namespace: None)
        self.mongod = self.sidecar = self.mirror = self.open_cursors = self.fail_points = self
        self.other_members = ["other:27018"]
        self.refresher = self
        self.failures = 0

    def namespace(self, _namespace: str) -> Any:  # noqa: ANN401 - a fake of its state
        return SimpleNamespace(wait_earlier_operations=trio.lowlevel.checkpoint, is_known=True, table=self.table)

    @property
    def table(self) -> Any:  # noqa: ANN401 - as above
        return table("me", "other", "me")

    def require_identity(self) -> SimpleNamespace:
        return SimpleNamespace(shard_name="me")

    async def wait_closed(self, _namespace: str, *, opened_until: object) -> None:
        await trio.lowlevel.checkpoint()

    async def wait_closed_on(self, _pool: object, _namespace: str) -> None:
        await trio.sleep_forever()

    def pool_of_member(self, address: str) -> str:
        return address

    async def hang_while(self, _name: str) -> None:
        await trio.lowlevel.checkpoint()

    async def command(self, _db: str, _command: Mapping[str, Any]) -> dict[str, Any]:
        await trio.lowlevel.checkpoint()
        return {"orphanCleanupDelaySecs": DELAY, "rangeDeleterBatchSize": 0, "rangeDeleterBatchDelayMS": 0, "ok": 1.0}

    async def current_table(self, _state: object) -> Any:  # noqa: ANN401 - as above
        await trio.lowlevel.checkpoint()
        return self.table

    async def wait_majority(self) -> None:
        await trio.lowlevel.checkpoint()
        if self.failures:
            self.failures -= 1
            raise CommandError(ErrorCode.PrimarySteppedDown, "a failed attempt")


class Store:
    """Persists nothing."""

    async def insert(self, _task: RangeDeletionTask) -> None:
        await trio.lowlevel.checkpoint()

    async def delete(self, _migration: object) -> None:
        await trio.lowlevel.checkpoint()

    async def prepare(self) -> None:
        await trio.lowlevel.checkpoint()

    async def load(self) -> list[RangeDeletionTask]:
        await trio.lowlevel.checkpoint()
        return []


async def seconds_until_deleted(monkeypatch: pytest.MonkeyPatch, shard: Shard, given: RangeDeletionTask) -> float:
    """Return the duration of a deletion that begins at ``BEGAN``."""

    async def is_range_empty(*_: object) -> bool:
        await trio.lowlevel.checkpoint()
        return False

    async def next_batch(*_: object) -> list[bytes]:
        await trio.lowlevel.checkpoint()
        return []

    start = trio.current_time()
    monkeypatch.setattr(range_deleter, "is_range_empty", is_range_empty)
    monkeypatch.setattr(range_deleter, "next_batch", next_batch)
    monkeypatch.setattr(time, "time", lambda: BEGAN + trio.current_time() - start)
    sessions: Any = None
    deleter = RangeDeleter(shard, sessions, Store(), lambda *_: None, trio.lowlevel.checkpoint)  # type: ignore[arg-type]
    await deleter.delete(KnownDeletion(given))
    return trio.current_time() - start


def test_failed_attempts_do_not_repeat_the_wait_for_cursors(monkeypatch: pytest.MonkeyPatch) -> None:
    shard = Shard()
    shard.failures = 2
    waited = trio.run(
        seconds_until_deleted, monkeypatch, shard, task(timestamp=BEGAN), clock=MockClock(autojump_threshold=0)
    )
    assert WAITS_MAX <= waited < WAITS_MAX + 5


def test_failed_attempts_without_a_time_do_not_repeat_it_either(monkeypatch: pytest.MonkeyPatch) -> None:
    shard = Shard()
    shard.failures = 2
    waited = trio.run(seconds_until_deleted, monkeypatch, shard, task(), clock=MockClock(autojump_threshold=0))
    assert WAITS_MAX <= waited < WAITS_MAX + 5


@pytest.mark.parametrize("passed", [5, 30, WAITS_MAX, 1000])
def test_another_term_waits_for_the_rest_only(monkeypatch: pytest.MonkeyPatch, passed: int) -> None:
    waited = trio.run(
        seconds_until_deleted,
        monkeypatch,
        Shard(),
        task(timestamp=BEGAN - passed),
        clock=MockClock(autojump_threshold=0),
    )
    rest = max(WAITS_MAX - passed, 0)
    assert rest <= waited < rest + 1


async def test_a_range_whose_hiding_failed_is_hidden_when_it_is_registered_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As after a repeated step of a recipient: otherwise older reads would see later writes to the range."""
    hidden: list[OwnershipFilter] = []
    failures = [CommandError(ErrorCode.LockTimeout, "an older write is in progress")]

    async def hide(_state: object, _cursors: object, ranges: OwnershipFilter) -> None:
        await trio.lowlevel.checkpoint()
        if failures:
            raise failures.pop()
        hidden.append(ranges)

    monkeypatch.setattr(range_deleter_service, "hide_from_older_readers", hide)
    monkeypatch.setattr(range_deleter_service, "RangeDeletionStore", lambda _mongod: Store())
    unused: Any = None
    deletions = RangeDeletions(Shard(), unused, unused, trio.lowlevel.checkpoint)  # type: ignore[arg-type]
    incoming = task(pending=True)
    async with trio.open_nursery() as nursery:
        await deletions.begin_term(1, nursery)
        with pytest.raises(CommandError):
            await deletions.register(incoming)
        await deletions.register(incoming)
        assert len(hidden) == 1
        await deletions.register(incoming)
        assert len(hidden) == 1
        await deletions.register(task(donor="me", pending=True))
        assert len(hidden) == 1
