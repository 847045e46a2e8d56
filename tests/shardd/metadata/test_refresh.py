"""Refreshes that are joined, and the errors of waiters when one fails."""

from functools import partial
from typing import TYPE_CHECKING, Any, cast

import pytest
import trio
from bson.timestamp import Timestamp

from shardwright.daemon.metrics import Metrics
from shardwright.shardd.exchange.remote_sets import Catalog
from shardwright.shardd.metadata.critical_sections import RecoveryGate
from shardwright.shardd.metadata.database_state import DatabaseState
from shardwright.shardd.metadata.metadata_store import MetadataWriter
from shardwright.shardd.metadata.namespace_state import NamespaceState
from shardwright.shardd.metadata.refresh import MetadataRefresher
from shardwright.shardd.orphans.range_deletion_tasks import RangeDeletionTasks
from shardwright.sharding.routing_table import RoutingTable
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.read_preference import ReadPreference

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from shardwright.shardd.metadata.metadata_store import MetadataStore


class FakeSources:
    """A shard, its catalog and its primary in one: reads wait until they may continue, and are counted."""

    def __init__(self) -> None:
        self.term: int | None = 3
        self.recovery_gate = RecoveryGate(lambda: self.is_primary)
        self.recovery_gate.open()
        self.range_deletion_tasks = RangeDeletionTasks(lambda _: None)
        self.range_deletion_tasks.set_loaded()
        self.reads = 0
        self.may_go_on = trio.Event()
        self.is_mongod_gone = False

    @property
    def is_primary(self) -> bool:
        return self.term is not None

    async def catalog(self) -> Catalog:
        return cast("Catalog", self)

    async def read(self, _: object, *, preference: ReadPreference) -> None:
        self.reads += 1
        await self.may_go_on.wait()

    async def ask_primary(self, _: dict[str, Any]) -> dict[str, Any]:
        await trio.sleep_forever()
        raise AssertionError("unreachable")

    async def advance_cluster_time(self, _: Timestamp) -> None:
        """Do nothing: there is no clock."""

    async def load_own_collection(self, _: str) -> RoutingTable | None:
        if self.is_mongod_gone:
            raise BackendError("mongod", "has gone", sent=True)
        return None


def refresher_of(sources: FakeSources, nursery: trio.Nursery) -> MetadataRefresher:
    store = cast("MetadataStore", sources)
    counter = Metrics("shardd", ()).labelled_counter("refreshes", "Refreshes", "kind", ("collection", "database"))
    return MetadataRefresher(sources, store, MetadataWriter(store), nursery, counter)


async def test_a_reread_does_not_join_a_refresh_that_began_before_it() -> None:
    sources, state = FakeSources(), NamespaceState("db.c", "me")
    async with trio.open_nursery() as nursery:
        refresher = refresher_of(sources, nursery)
        nursery.start_soon(refresher.refresh_collection, state)
        await trio.testing.wait_all_tasks_blocked()
        for ask in (refresher.reread_collection, refresher.reread_collection, refresher.refresh_collection):
            nursery.start_soon(ask, state)
        await trio.testing.wait_all_tasks_blocked()
        assert sources.reads == 1
        sources.may_go_on.set()
    assert sources.reads == 2


async def test_a_namespace_that_is_forgotten_at_once_is_not_taken_for_an_unsharded_one() -> None:
    class ForgottenOnce(NamespaceState):
        __slots__ = ()

        def learn(self, table: RoutingTable | None) -> None:
            super().learn(table)
            if not self.generation:
                self.forget()

    sources, state = FakeSources(), ForgottenOnce("db.c", "me")
    sources.may_go_on.set()
    async with trio.open_nursery() as nursery:
        await refresher_of(sources, nursery).current_table(state)
    assert (state.is_known, sources.reads) == (True, 2)


async def test_a_refresh_that_began_in_another_role_is_not_joined() -> None:
    sources, state = FakeSources(), NamespaceState("db.c", "me")
    sources.may_go_on.set()
    async with trio.open_nursery() as nursery:
        refresher = refresher_of(sources, nursery)
        sources.term = None
        nursery.start_soon(refresher.refresh_collection, state)  # asks a primary that does not answer
        await trio.testing.wait_all_tasks_blocked()
        sources.term = 4
        with trio.fail_after(10):
            await refresher.refresh_collection(state)
        nursery.cancel_scope.cancel()
    assert state.is_known


@pytest.mark.parametrize("kind", ["collection", "database"])
async def test_a_refresh_does_not_go_on_in_another_role(kind: str) -> None:
    """A mongod that was stopped for a while is primary again in the same term: its secondary asks itself meanwhile."""

    sources = FakeSources()
    async with trio.open_nursery() as nursery:
        refresher = refresher_of(sources, nursery)
        refresh: Callable[[], Awaitable[None]]
        if kind == "collection":
            refresh = partial(refresher.refresh_collection, NamespaceState("db.c", "me"))
        else:
            refresh = partial(refresher.refresh_database, DatabaseState("db"))
        nursery.start_soon(refresh)
        await trio.testing.wait_all_tasks_blocked()
        sources.term = None
        sources.may_go_on.set()
        await trio.testing.wait_all_tasks_blocked()
        sources.term = 3
        with trio.fail_after(10):
            await refresh()
        nursery.cancel_scope.cancel()


async def test_a_mongod_that_does_not_answer_is_an_error_of_the_refresh() -> None:
    sources = FakeSources()
    sources.is_mongod_gone = True
    async with trio.open_nursery() as nursery:
        refresher = refresher_of(sources, nursery)
        with pytest.raises(CommandError) as caught:
            await refresher.refresh_collection(NamespaceState("db.c", "me"))
        assert caught.value.code == ErrorCode.HostUnreachable
