"""The conditions for splitting chunks: thresholds, settings, failures, and one split of a chunk at a time."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial, wraps
from random import Random
from time import process_time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar, cast

import bson
import pytest
import trio
from bson.max_key import MaxKey
from bson.min_key import MinKey
from trio.testing import MockClock, wait_all_tasks_blocked

from shardwright.daemon.metrics import Metrics
from shardwright.shardd.metadata.namespace_state import NamespaceState
from shardwright.shardd.splitting.auto_splitter import RETRY_SECONDS, SETTINGS_SECONDS_MAX, AutoSplitter
from shardwright.shardd.splitting.chunk_splitter import ChunkBounds, ChunkSplitter, Outcome
from shardwright.shardd.splitting.growth import SplitSettings
from shardwright.sharding.routing_table import RoutingTable, ShardedCollection
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.message import OpMsg, op_msg, reply_document
from shardwright.wire.request import Request
from tests.sharding.chunk_worlds import COLLECTION, chunk, key

if TYPE_CHECKING:
    from shardwright.shardd.context.shard_context import ShardContext

MB = 1 << 20
KB = 1 << 10
INSERTED = reply_document(1, {"n": 1, "ok": 1.0})


Test = TypeVar("Test", bound=Callable[..., Awaitable[None]])


def simulated(test: Test) -> Test:
    """Run a test in trio, with a clock that jumps ahead whenever all tasks wait."""

    @wraps(test)
    def run(**arguments: object) -> None:
        trio.run(partial(test, **arguments), clock=MockClock(autojump_threshold=0))

    return cast("Test", run)


@dataclass
class FakeSplitter:
    """Records attempts; each one waits until it may end."""

    attempts: list[tuple[str, ChunkBounds, SplitSettings]] = field(default_factory=list)
    may_end: trio.Event = field(default_factory=trio.Event)
    error: CommandError | None = None

    async def split(self, namespace: str, bounds: ChunkBounds, settings: SplitSettings) -> Outcome:
        self.attempts.append((namespace, bounds, settings))
        await self.may_end.wait()
        if self.error is not None:
            raise self.error
        return Outcome.SPLIT


@dataclass
class World:
    """An auto-splitter with settings in a catalog."""

    splitter: FakeSplitter
    settings: list[dict[str, Any]]
    auto: AutoSplitter
    state: NamespaceState
    table: RoutingTable

    def insert(self, number: int, kilobytes: int, value: int = 1) -> None:
        """Insert documents of 1 KB with one value of the shard key."""
        document = {"x": value, "v": "x" * (KB - 30)}
        command = {"insert": "c", "documents": [document], "$db": "d"}
        request = Request(OpMsg(op_msg(bson.encode(command), request_id=1)))
        for _ in range(number * kilobytes):
            self.auto.observe(request, INSERTED, self.state, self.table)


def table_of(collection: ShardedCollection) -> RoutingTable:
    chunks = [chunk(MinKey(), 0, "a", 1, 0), chunk(0, 100, "a", 1, 1), chunk(100, MaxKey(), "a", 1, 2)]
    return RoutingTable.build(collection, [each.placement for each in chunks])


@asynccontextmanager
async def world(collection: ShardedCollection = COLLECTION, **settings: object) -> AsyncIterator[World]:
    documents: list[dict[str, Any]] = [
        {"_id": name, **cast("dict[str, Any]", value)} for name, value in settings.items()
    ]

    class FakeCatalog:
        async def find(self, collection: str, query: object) -> list[bytes]:
            assert collection == "settings"
            return [bson.encode(each) for each in documents]

    async def catalog() -> FakeCatalog:
        return FakeCatalog()

    context = SimpleNamespace(catalog=catalog, metrics=Metrics("shardd", ()))
    splitter = FakeSplitter()
    auto = AutoSplitter(cast("ShardContext", context), cast("ChunkSplitter", splitter), Random(5))
    table = table_of(collection)
    async with trio.open_nursery() as nursery:
        await auto.begin_term(1, nursery)
        yield World(splitter, documents, auto, NamespaceState("d.c", "a"), table)
        nursery.cancel_scope.cancel()
    auto.end_term()


MIDDLE = (key(0), key(100))


@simulated
async def test_nothing_is_looked_at_before_a_fifth_of_the_chunk_size() -> None:
    async with world(chunksize={"value": 1}) as each:
        each.insert(1, 10)
        await wait_all_tasks_blocked()  # the settings are known
        each.insert(1, 150)
        await wait_all_tasks_blocked()
        assert not each.splitter.attempts
        each.insert(1, 60)
        await wait_all_tasks_blocked()
        assert [attempt[:2] for attempt in each.splitter.attempts] == [("d.c", MIDDLE)]


@simulated
async def test_the_fraction_can_be_set() -> None:
    async with world(chunksize={"value": 1}) as each:
        each.auto.parameters.growth_fraction = 0.5
        each.insert(1, 10)
        await wait_all_tasks_blocked()
        each.insert(1, 400)
        await wait_all_tasks_blocked()
        assert not each.splitter.attempts
        each.insert(1, 150)
        await wait_all_tasks_blocked()
        assert [attempt[:2] for attempt in each.splitter.attempts] == [("d.c", MIDDLE)]


@simulated
async def test_settings_apply_to_what_was_counted_before_they_were_known() -> None:
    async with world(chunksize={"value": 1}) as each:
        each.insert(1, 900)
        await wait_all_tasks_blocked()
        assert len(each.splitter.attempts) == 1


@simulated
async def test_small_data_causes_nothing_by_default() -> None:
    async with world() as each:
        each.insert(20, KB)
        await wait_all_tasks_blocked()
        assert not each.splitter.attempts
        each.insert(8, KB)
        await wait_all_tasks_blocked()
        assert len(each.splitter.attempts) == 1


@simulated
async def test_a_chunk_is_split_once_at_a_time() -> None:
    async with world(chunksize={"value": 1}) as each:
        each.insert(3, KB)
        await wait_all_tasks_blocked()
        each.insert(3, KB)
        each.insert(3, KB, value=200)
        await wait_all_tasks_blocked()
        assert sorted(bounds for _, bounds, _ in each.splitter.attempts) == sorted([MIDDLE, (key(100), key(MaxKey()))])
        each.splitter.may_end.set()
        await wait_all_tasks_blocked()
        each.insert(1, 10)
        await wait_all_tasks_blocked()
        assert len(each.splitter.attempts) == 3  # what was written meanwhile counts


@simulated
async def test_a_failed_split_is_repeated_after_a_while() -> None:
    async with world(chunksize={"value": 1}) as each:
        each.splitter.error = CommandError(ErrorCode.LockBusy, "later")
        each.splitter.may_end.set()
        each.insert(1, 500)
        await wait_all_tasks_blocked()
        each.insert(1, 20)
        await wait_all_tasks_blocked()
        assert len(each.splitter.attempts) == 1
        await trio.sleep(RETRY_SECONDS + 1)
        each.insert(1, 20)  # much less than the threshold: the former count is there again
        await wait_all_tasks_blocked()
        assert len(each.splitter.attempts) == 2


@simulated
async def test_waiting_until_all_is_split() -> None:
    async with world(chunksize={"value": 1}) as each:
        await each.auto.wait_idle()
        each.insert(1, 500)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(each.auto.wait_idle)
            await wait_all_tasks_blocked()
            assert len(each.splitter.attempts) == 1
            assert nursery.child_tasks
            each.splitter.may_end.set()


@simulated
async def test_a_failed_split_is_not_waited_for() -> None:
    async with world(chunksize={"value": 1}) as each:
        each.splitter.error = CommandError(ErrorCode.LockBusy, "later")
        each.splitter.may_end.set()
        each.insert(1, 500)
        began = trio.current_time()
        await each.auto.wait_idle()
        assert len(each.splitter.attempts) == 1
        assert trio.current_time() - began < RETRY_SECONDS


@simulated
async def test_the_end_of_the_term_ends_the_wait() -> None:
    async with world(chunksize={"value": 1}) as each:
        each.insert(1, 500)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(each.auto.wait_idle)
            await wait_all_tasks_blocked()
            each.auto.end_term()


@simulated
async def test_a_collection_may_have_its_own_chunk_size() -> None:
    async with world(replace(COLLECTION, max_chunk_size_bytes=10 * MB), chunksize={"value": 1}) as each:
        each.insert(1, 1900)
        await wait_all_tasks_blocked()
        assert not each.splitter.attempts
        each.insert(1, 300)
        await wait_all_tasks_blocked()
        assert len(each.splitter.attempts) == 1


def switch_off(auto: AutoSplitter) -> None:
    auto.parameters.is_enabled = False


@pytest.mark.parametrize("stop", [switch_off, AutoSplitter.end_term])
@simulated
async def test_nothing_is_counted_while_switched_off(stop: Callable[[AutoSplitter], None]) -> None:
    async with world(chunksize={"value": 1}) as each:
        stop(each.auto)
        each.insert(2, KB)
        await wait_all_tasks_blocked()
        assert not each.splitter.attempts


@simulated
async def test_the_settings_are_passed_on_and_read_again() -> None:
    async with world(chunksize={"value": 2}, autosplit={"enabled": False}) as each:
        each.splitter.may_end.set()
        each.insert(1, 600)
        await wait_all_tasks_blocked()
        assert each.splitter.attempts[0][2] == SplitSettings(2 * MB, is_enabled=False, may_move=True)
        each.settings[:] = [{"_id": "chunksize", "value": "not a number"}]
        await trio.sleep(SETTINGS_SECONDS_MAX + 1)
        each.insert(1, 600)
        await wait_all_tasks_blocked()
        assert each.splitter.attempts[-1][2].chunk_bytes_max == 2 * MB  # the last valid one
        each.settings[:] = [{"_id": "balancer", "stopped": True}]
        await trio.sleep(SETTINGS_SECONDS_MAX + 1)
        each.insert(30, KB)
        await wait_all_tasks_blocked()
        assert each.splitter.attempts[-1][2] == SplitSettings(may_move=False)


@simulated
async def test_another_incarnation_of_the_collection_has_grown_by_nothing() -> None:
    async with world(chunksize={"value": 1}) as each:
        each.insert(1, 10)
        await wait_all_tasks_blocked()
        each.insert(1, 150)
        each.table = table_of(replace(COLLECTION, timestamp=bson.Timestamp(2000, 1)))
        each.insert(1, 150)
        await wait_all_tasks_blocked()
        assert not each.splitter.attempts


@simulated
async def test_updates_without_the_shard_key_may_concern_any_chunk() -> None:
    async with world(chunksize={"value": 1}) as each:
        statement = {"q": {"v": 1}, "u": {"$set": {"v": "x" * KB}}, "multi": True}
        request = Request(OpMsg(op_msg(bson.encode({"update": "c", "updates": [statement], "$db": "d"}), request_id=1)))
        reply = reply_document(1, {"n": 90, "nModified": 90, "ok": 1.0})
        for _ in range(60):
            each.auto.observe(request, reply, each.state, each.table)
            await wait_all_tasks_blocked()
        assert len({bounds for _, bounds, _ in each.splitter.attempts}) == 3


@simulated
async def test_an_update_of_any_size_is_counted_in_a_moment() -> None:
    """Of each 64 KB one sample was taken: 30 million."""
    async with world() as w:
        update = {"q": {"x": 1}, "u": {"$set": {"v": "x" * KB}}, "multi": True}
        command = {"update": "c", "updates": [update], "$db": "d"}
        request = Request(OpMsg(op_msg(bson.encode(command), request_id=1)))
        reply = reply_document(1, {"n": 2**31 - 1, "nModified": 2**31 - 1, "ok": 1.0})
        began = process_time()
        w.auto.observe(request, reply, w.state, w.table)
        assert process_time() - began < 10
        await wait_all_tasks_blocked()
        assert [bounds for _, bounds, _ in w.splitter.attempts] == [MIDDLE]
