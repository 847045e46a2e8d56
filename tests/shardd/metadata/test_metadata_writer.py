"""Waiting for metadata to be persisted, when it cannot be written."""

from typing import TYPE_CHECKING, cast

import pytest
import trio

from shardwright.shardd.metadata.metadata_store import MetadataWriter
from shardwright.sharding.routing_table import RoutingTable
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import BackendError, CommandError

if TYPE_CHECKING:
    from shardwright.shardd.metadata.metadata_store import MetadataStore


class FakeStore:
    """Saves nothing, and fails as often as the test says."""

    def __init__(self, failures: int = 0) -> None:
        self.failures = failures
        self.may_go_on = trio.Event()
        self.saved: list[str] = []

    def forget(self) -> None:
        """Do nothing: nothing is remembered."""

    async def save_collection(self, namespace: str, _: RoutingTable | None) -> None:
        await self.may_go_on.wait()
        if self.failures:
            self.failures -= 1
            raise BackendError("mongod", "has gone", sent=True)
        self.saved.append(namespace)


async def run_writer(store: FakeStore, writer: MetadataWriter, nursery: trio.Nursery) -> None:
    nursery.start_soon(writer.run)
    await trio.testing.wait_all_tasks_blocked()
    writer.save_collection("db.c", None)
    await trio.testing.wait_all_tasks_blocked()


async def test_a_failed_save_raises_an_error_for_waiters_until_one_succeeds() -> None:
    store = FakeStore(failures=1)
    writer = MetadataWriter(cast("MetadataStore", store))
    async with trio.open_nursery() as nursery:
        await run_writer(store, writer, nursery)
        store.may_go_on.set()
        with pytest.raises(CommandError) as caught:
            await writer.wait_collection_saved("db.c")
        assert caught.value.code == ErrorCode.HostUnreachable
        writer.save_collection("db.c", None)
        await writer.wait_collection_saved("db.c")
        assert store.saved == ["db.c"]
        nursery.cancel_scope.cancel()


async def test_metadata_not_saved_by_the_end_of_the_term_is_an_error() -> None:
    store = FakeStore()
    writer = MetadataWriter(cast("MetadataStore", store))
    async with trio.open_nursery() as nursery:
        await run_writer(store, writer, nursery)
        nursery.cancel_scope.cancel()
    with pytest.raises(CommandError) as caught:
        await writer.wait_collection_saved("db.c")
    assert caught.value.code == ErrorCode.InterruptedDueToReplStateChange
    assert not store.saved
