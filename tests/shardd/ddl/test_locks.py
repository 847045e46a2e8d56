"""DDL locks, and coordinators as ``$currentOp`` shows them."""

from functools import partial
from typing import Any, cast

import pytest
import trio
from trio.testing import MockClock

from shardwright.shardd.context.ddl_locks import DDLLocks
from shardwright.shardd.ddl.service import coordinator_operation
from shardwright.shardd.ddl.shard_key_changes import RefineCollectionShardKey
from shardwright.sharding.namespace import Namespace
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError

NOBODY = cast("Any", None)


async def hold(locks: DDLLocks, *, task_status: trio.TaskStatus[None]) -> None:
    """Hold the lock of ``d`` until cancelled."""
    async with locks.hold("d"):
        task_status.started()
        await trio.sleep_forever()


async def test_a_lock_that_is_not_released_is_waited_for_no_longer_than_allowed(autojump_clock: MockClock) -> None:
    locks = DDLLocks()
    async with trio.open_nursery() as nursery:
        await nursery.start(partial(hold, locks))
        with pytest.raises(CommandError) as caught:
            async with locks.hold_all(["c", "d"], seconds_max=300):
                raise AssertionError("the lock is held")
        assert caught.value.code == ErrorCode.LockBusy
        async with locks.hold("c"):  # was released
            nursery.cancel_scope.cancel()
    async with locks.hold_all(["c", "d"], seconds_max=300):
        pass


def test_a_coordinator_is_shown_without_its_session() -> None:
    arguments = {"newShardKey": {"a": 1, "b": 1}, "session": {"txnNumber": 3}}
    coordinator = RefineCollectionShardKey(NOBODY, NOBODY, Namespace("d", "c"), arguments, "RefineCollectionShardKey")
    assert coordinator.locks == ["d", "d.c"]
    assert coordinator_operation(coordinator) == {
        "type": "op",
        "desc": "RefineCollectionShardKeyCoordinator",
        "op": "command",
        "ns": "d.c",
        "command": {"newShardKey": {"a": 1, "b": 1}},
        "active": True,
        "currentPhase": "RefineCollectionShardKey",
    }
