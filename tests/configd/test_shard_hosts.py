"""Following the hosts of shards."""

import logging
from typing import TYPE_CHECKING, Any, cast

import pytest
import trio
import trio.testing

from shardwright.configd.term.shard_clients import ShardClients, ShardHosts
from shardwright.sharding.catalog.documents import ShardEntry
from shardwright.wire.errors import BackendError
from shardwright.wire.transport.pool import ConnectionPools
from tests.transports import new_transport

if TYPE_CHECKING:
    from shardwright.configd.catalog.catalog import Catalog


class FakeMonitor:
    """Monitors a set whose primary is known."""

    primary = "h:1"

    def __init__(self) -> None:
        self.members: dict[str, None] = {"h:1": None}
        self._changed = trio.Event()

    @property
    def connection_string(self) -> str:
        return f"rs/{','.join(self.members)}"

    def change(self, *members: str) -> None:
        self.members = dict.fromkeys(members)
        self._changed.set()
        self._changed = trio.Event()

    async def wait_for_change(self) -> None:
        await self._changed.wait()


class FakeClients:
    """Clients of shards, all with one monitor."""

    def __init__(self) -> None:
        self.monitor = FakeMonitor()

    def client(self, _: ShardEntry) -> "FakeClients":
        return self


class WrittenCatalog:
    """A catalog that counts transactions."""

    def __init__(self) -> None:
        self.transactions = 0

    async def transaction(self, _: object) -> None:
        await trio.lowlevel.checkpoint()
        self.transactions += 1


class FailingCatalog(WrittenCatalog):
    """A catalog whose first read and first transaction fail."""

    def __init__(self) -> None:
        super().__init__()
        self.is_written = trio.Event()
        self._failures = {"read", "transaction"}

    async def shards(self) -> list[ShardEntry]:
        """The entries."""
        self._fail_once("read")
        await trio.lowlevel.checkpoint()
        return [ShardEntry("a", "rs/h:1")]

    async def transaction(self, work: object) -> None:
        self._fail_once("transaction")
        await super().transaction(work)
        self.is_written.set()

    def _fail_once(self, what: str) -> None:
        if what in self._failures:
            self._failures.remove(what)
            raise BackendError("mongod", "it does not answer", sent=False)


class FakeCatalog:
    """A catalog in which one shard's entry names no hosts."""

    async def shards(self) -> list[ShardEntry]:
        """The entries."""
        await trio.lowlevel.checkpoint()
        return [ShardEntry("bad", "set/"), ShardEntry("good", "rs/127.0.0.1:1")]


async def no_gossip() -> dict[str, Any]:
    await trio.lowlevel.checkpoint()
    return {}


async def test_a_primary_that_shows_no_members_leaves_the_entry() -> None:
    """As a daemon does whose set has been initiated with the addresses of daemons."""

    async with trio.open_nursery() as nursery:
        clients, catalog = FakeClients(), WrittenCatalog()
        hosts = ShardHosts(cast("Catalog", catalog), cast("ShardClients", clients), nursery)
        hosts.follow(ShardEntry("a", "rs/h:1"))
        for members, expected in (((), 0), (("h:1",), 0), (("h:1", "h:2"), 1)):
            clients.monitor.change(*members)
            await trio.testing.wait_all_tasks_blocked()
            assert catalog.transactions == expected
        nursery.cancel_scope.cancel()


async def test_a_failed_read_or_update_is_repeated(autojump_clock: trio.testing.MockClock) -> None:
    async with trio.open_nursery() as nursery:
        clients, catalog = FakeClients(), FailingCatalog()
        clients.monitor.change("h:1", "h:2")
        await ShardHosts(cast("Catalog", catalog), cast("ShardClients", clients), nursery).follow_all()
        with trio.fail_after(60):
            await catalog.is_written.wait()
        nursery.cancel_scope.cancel()


def test_an_entry_without_hosts_does_not_end_the_term(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            shards = ShardClients(nursery, ConnectionPools(new_transport(), dict), no_gossip, trio.lowlevel.checkpoint)
            hosts = ShardHosts(cast("Catalog", FakeCatalog()), shards, nursery)
            await hosts.follow_all()
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()

    with caplog.at_level(logging.WARNING):
        trio.run(main)
    assert [record.message for record in caplog.records if "hosts" in record.message] == [
        "Could not read the hosts of a shard"
    ]
