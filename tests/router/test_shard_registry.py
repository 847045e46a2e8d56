"""The router's list of shards, read from the catalog."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, cast

import pytest
import trio
from bson.timestamp import Timestamp

from shardwright.router.placement.routing_info import UnknownShardError
from shardwright.router.routing.shards import ShardRegistry
from shardwright.sharding.catalog.documents import ShardEntry
from shardwright.sharding.clock import VectorClock
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.transport.monitor import ReplicaSetMonitor
from shardwright.wire.transport.pool import ConnectionPools
from shardwright.wire.transport.replica_set import ReplicaSetClient
from tests.transports import new_transport

if TYPE_CHECKING:
    from types import GeneratorType

    from shardwright.config_servers.catalog_client import CatalogClient


class FakeCatalog:
    """A catalog with some shards.

    Args:
        hosts: ``host`` of their entries, by name.

    Attributes:
        entries: the entries.
        times: times of the reads of the entries.
    """

    def __init__(self, pools: ConnectionPools, hosts: dict[str, str]) -> None:
        self.client = ReplicaSetClient(ReplicaSetMonitor("cfg", ["127.0.0.1:1"], dict, pools), pools)
        self.entries = [ShardEntry(name, host) for name, host in hosts.items()]
        self.times: list[int] = []

    async def read(self, steps: "GeneratorType[Any, Any, Any]", *, as_of: int = 0) -> list[ShardEntry]:
        """The entries."""
        self.times.append(as_of)
        steps.close()
        await trio.lowlevel.checkpoint()
        return self.entries


def with_shards(check: Callable[[ShardRegistry], None], **hosts: str) -> None:
    """Have a registry read entries, and check it."""

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            pools = ConnectionPools(new_transport(), dict)
            catalog = cast("CatalogClient", FakeCatalog(pools, hosts))
            registry = ShardRegistry(catalog, pools, dict, nursery, VectorClock())
            reload: Callable[[], Awaitable[None]] = registry.reload
            await reload()
            check(registry)
            nursery.cancel_scope.cancel()

    trio.run(main)


def test_an_entry_without_hosts_hides_no_other_shard() -> None:
    def check(registry: ShardRegistry) -> None:
        assert registry.is_known
        assert [shard.id for shard in registry.known()] == ["config", "good", "next"]
        assert registry.find("bad") is None

    with_shards(check, good="one/127.0.0.1:1", bad="two/", next="three/127.0.0.1:2,127.0.0.1:3")


def test_a_shard_is_found_by_its_name_its_set_or_its_members() -> None:
    def found(registry: ShardRegistry, identifier: str) -> str | None:
        shard = registry.find(identifier)
        return None if shard is None else shard.id

    def check(registry: ShardRegistry) -> None:
        for identifier in ("a", "rs/h:1,h:2", "rs/h:2", "h:2"):
            assert found(registry, identifier) == "a", identifier
        assert found(registry, "h") == "b"  # at the default port of shards
        for identifier in ("c", "rs", "rs/", "other/h:1", "rs/h:1,h:3", "h:3", "h:x", "h:1,h:2"):
            assert found(registry, identifier) is None, identifier

    with_shards(check, a="rs/h:1,h:2", b="rt/h:27017")


async def test_a_shard_that_was_added_again_is_looked_for_anew() -> None:
    """It may be another replica set at the same hosts, whose elections count from the beginning."""

    async with trio.open_nursery() as nursery:
        pools = ConnectionPools(new_transport(), dict)
        catalog = FakeCatalog(pools, {"one": "one/127.0.0.1:1"})
        registry = ShardRegistry(cast("CatalogClient", catalog), pools, dict, nursery, VectorClock())
        known = await registry.get("one")
        await registry.reload_as_of(1)
        assert await registry.get("one") is known
        catalog.entries = [ShardEntry("one", "one/127.0.0.1:1", Timestamp(2, 1))]
        await registry.reload_as_of(2)
        assert (await registry.get("one")).client is not known.client
        nursery.cancel_scope.cancel()


def test_it_names_shards_that_are_gone() -> None:
    told: list[set[str]] = []

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            pools = ConnectionPools(new_transport(), dict)
            catalog = FakeCatalog(pools, {"one": "one/127.0.0.1:1", "another": "two/127.0.0.1:2"})
            registry = ShardRegistry(cast("CatalogClient", catalog), pools, dict, nursery, VectorClock())
            registry.on_removed = lambda gone: told.append(set(gone))
            assert await registry.get("one")
            catalog.entries.pop(0)
            assert await registry.reload_as_of(1) == ("another",)
            for name in ("one", "never"):
                with pytest.raises(UnknownShardError, match=f"Shard {name} not found"):
                    await registry.get(name)
            nursery.cancel_scope.cancel()

    trio.run(main)
    assert told == [{"one"}, {"one"}, {"never"}]


async def test_the_list_as_of_a_time() -> None:
    """Only the read that was asked for waits for the time."""

    async with trio.open_nursery() as nursery:
        pools = ConnectionPools(new_transport(), dict)
        catalog = FakeCatalog(pools, {"one": "one/127.0.0.1:1", "another": "two/127.0.0.1:2"})
        registry = ShardRegistry(cast("CatalogClient", catalog), pools, dict, nursery, VectorClock())
        assert await registry.reload_as_of(7) == ("another", "one")
        reload: Callable[[], Awaitable[None]] = registry.reload
        await reload()
        assert catalog.times == [7, 0]
        nursery.cancel_scope.cancel()


def test_a_request_for_any_shard_goes_to_one_with_a_primary(monkeypatch: pytest.MonkeyPatch) -> None:
    def check(registry: ShardRegistry) -> None:
        assert registry.reachable_of(("a", "b")) == "a"
        known = registry.get_known("b")
        assert known is not None
        monkeypatch.setattr(known.client.monitor, "primary", "127.0.0.1:2")
        assert registry.reachable_of(("a", "b")) == "b"

    with_shards(check, a="a/127.0.0.1:1", b="b/127.0.0.1:2")


async def test_without_shards_there_is_none_for_any_request() -> None:
    async with trio.open_nursery() as nursery:
        pools = ConnectionPools(new_transport(), dict)
        catalog = cast("CatalogClient", FakeCatalog(pools, {}))
        registry = ShardRegistry(catalog, pools, dict, nursery, VectorClock())
        with pytest.raises(CommandError, match="No shards found") as caught:
            await registry.any_id_as_told()
        assert caught.value.code == ErrorCode.ShardNotFound
        nursery.cancel_scope.cancel()
