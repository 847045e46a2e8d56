"""Blocked writes during a resharding, its abort, and the next resharding."""

import uuid
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
import trio.testing
from bson.timestamp import Timestamp

from shardwright.shardd.context.ddl_locks import DDLLocks
from shardwright.shardd.metadata.namespace_state import NamespaceState
from shardwright.shardd.resharding import service as services
from shardwright.shardd.resharding.donor import ReshardingDonor, section_of
from shardwright.shardd.resharding.local_documents import LocalOperation, LocalPart
from shardwright.shardd.resharding.service import ReshardingService
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.resharding_participation import DonorState, Participation, RecipientState
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError


async def done(*_: object, **__: object) -> None:
    await trio.lowlevel.checkpoint()


class Shard:
    """A shard with one collection, and the operations that it takes part in."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.state = NamespaceState("d.c", "me")
        found: Any = SimpleNamespace(
            namespace=lambda _: self.state,
            fail_points=SimpleNamespace(hang_while=done),
            mongod=SimpleNamespace(operation_time=self._time),
            store=SimpleNamespace(count_critical_section=done),
            refresher=SimpleNamespace(refresh_collection=done),
            config_times=SimpleNamespace(wait_durable=done),
            writer=SimpleNamespace(wait_collection_saved=done),
            views=SimpleNamespace(forget=lambda: None),
            ddl_locks=DDLLocks(),
        )
        self.context: Any = found
        self.service = ReshardingService(found, cast("Any", None))
        self.service._term_nursery = nursery

    async def _time(self) -> Timestamp:
        await trio.lowlevel.checkpoint()
        return Timestamp(1, 1)

    def donor(self) -> Participation:
        """Take part in a new operation, as donor."""
        taken = participation(donors=("me",), recipients=("other",))
        part = self._part(taken, DonorState.DONATING_INITIAL_DATA)
        section = section_of(self.context, taken)
        self.service.donors[taken.id] = ReshardingDonor(self.context, part, section, self.service._nursery)
        return taken

    def recipient(self) -> Participation:
        """Take part in a new operation, as recipient."""
        taken = participation(donors=("other",), recipients=("me",))
        part = self._part(taken, RecipientState.STRICT_CONSISTENCY)
        self.service.recipients[taken.id] = cast("Any", SimpleNamespace(part=part, end=done))
        return taken

    @staticmethod
    def _part(taken: Participation, state: DonorState | RecipientState) -> LocalPart:
        return LocalPart(cast("Any", SimpleNamespace(save=done, remove=done)), LocalOperation(taken, state))


def participation(*, donors: tuple[str, ...], recipients: tuple[str, ...]) -> Participation:
    key = ShardKeyPattern.from_mapping({"b": 1})
    return Participation(uuid.uuid4(), Namespace.parse("d.c"), uuid.uuid4(), key, donors, recipients)


def run(check: Callable[[Shard], Awaitable[None]], monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            await check(Shard(nursery))

    monkeypatch.setattr(services, "remove_remains", done)
    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


async def refused(request: Callable[[], Awaitable[object]]) -> None:
    with pytest.raises(CommandError) as caught:
        await request()
    assert caught.value.code == ErrorCode.NoSuchReshardCollection


def test_an_abort_ends_all_that_waits_for_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two equal commands, too; the writes never end."""

    async def check(shard: Shard) -> None:
        taken = shard.donor()
        shard.state.enter(is_write=True)
        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(refused, lambda: shard.service.block_writes(taken))
            await trio.testing.wait_all_tasks_blocked()
            assert shard.state.critical_section is not None
            await shard.service.abort(taken, is_canceled=False)
            assert shard.state.critical_section is None
        assert shard.state.critical_section is None

    run(check, monkeypatch)


def test_the_next_operation_blocks_writes_until_its_own_end(monkeypatch: pytest.MonkeyPatch) -> None:
    async def check(shard: Shard) -> None:
        former = shard.donor()
        shard.state.enter(is_write=True)
        running = shard.state.operations
        async with trio.open_nursery() as nursery:
            nursery.start_soon(refused, lambda: shard.service.block_writes(former))
            await trio.testing.wait_all_tasks_blocked()
            await shard.service.abort(former, is_canceled=False)
            following = shard.donor()
            nursery.start_soon(shard.service.block_writes, following)
            await trio.testing.wait_all_tasks_blocked()
            await shard.service.abort(former, is_canceled=False)
            shard.state.exit(running, is_write=True)
        assert shard.state.critical_section is not None
        section_of(shard.context, former).leave()
        assert shard.state.critical_section is not None
        await shard.service.abort(following, is_canceled=False)
        assert shard.state.critical_section is None

    run(check, monkeypatch)


def test_an_abort_does_not_wait_for_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    async def check(shard: Shard) -> None:
        taken = shard.recipient()
        shard.state.enter_transaction()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(refused, lambda: shard.service.hold(taken))
            await trio.testing.wait_all_tasks_blocked()
            assert shard.state.critical_section is not None
            await shard.service.abort(taken, is_canceled=True)
        assert shard.state.critical_section is None
        await refused(lambda: shard.service.hold(taken))

    run(check, monkeypatch)
