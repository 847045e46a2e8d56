"""Following the hosts of shards."""

import logging
from typing import TYPE_CHECKING, Any, cast

import pytest
import trio
import trio.testing

from shardwright.configd.shards.shard_clients import ShardClients
from shardwright.configd.shards.shard_hosts import ShardHosts
from shardwright.sharding.catalog.shard_entry import ShardEntry
from shardwright.wire.transport.pools import ConnectionPools

if TYPE_CHECKING:
    from shardwright.configd.catalog.catalog import Catalog


class FakeCatalog:
    """A catalog in which one shard's entry names no hosts."""

    async def shards(self) -> list[ShardEntry]:
        """The entries."""
        await trio.lowlevel.checkpoint()
        return [ShardEntry("bad", "set/"), ShardEntry("good", "rs/127.0.0.1:1")]


async def no_gossip() -> dict[str, Any]:
    await trio.lowlevel.checkpoint()
    return {}


def test_an_entry_without_hosts_does_not_end_the_term(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            shards = ShardClients(nursery, ConnectionPools(dict), no_gossip, trio.lowlevel.checkpoint)
            hosts = ShardHosts(cast("Catalog", FakeCatalog()), shards, nursery)
            await hosts.follow_all()
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()

    with caplog.at_level(logging.WARNING):
        trio.run(main)
    assert [record.message for record in caplog.records if "hosts" in record.message] == [
        "Could not read the hosts of a shard"
    ]
