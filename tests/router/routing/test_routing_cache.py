"""A refreshed placement is the one that the catalog has when the refresh is requested."""

from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

import trio
import trio.testing
from bson.timestamp import Timestamp

from shardwright.router.routing.routing_cache import COLLECTIONS_MAX, RoutingCache
from shardwright.sharding.catalog.documents import DatabaseEntry
from shardwright.sharding.clock import VectorClock
from shardwright.sharding.versions import DatabaseVersion

if TYPE_CHECKING:
    from types import GeneratorType

    from shardwright.config_servers.catalog_client import CatalogClient
    from shardwright.router.placement.routing_info import CollectionRouting

VERSION = DatabaseVersion(UUID(int=1), Timestamp(1, 1), 1)


class FakeCatalog:
    """A catalog of one database without sharded collections, whose replies can be delayed."""

    def __init__(self) -> None:
        self.primary = "west"
        self.clock = VectorClock()
        self.may_answer = trio.Event()
        self.may_answer.set()

    async def read(self, steps: "GeneratorType[Any, Any, Any]") -> DatabaseEntry | None:
        """The catalog's contents when the read begins."""
        found = DatabaseEntry("shop", self.primary, VERSION) if steps.__name__ == "read_database" else None
        steps.close()
        await self.may_answer.wait()
        return found


def test_latest_does_not_join_a_read_that_began_before() -> None:
    latest: list[CollectionRouting] = []

    async def main() -> None:
        catalog = FakeCatalog()
        async with trio.open_nursery() as nursery:
            cache = RoutingCache(cast("CatalogClient", catalog), nursery)
            known = await cache.collection("shop.orders")
            assert known.primary == "west"
            cache.forget_database("shop")
            catalog.may_answer = trio.Event()
            nursery.start_soon(cache.collection, "shop.orders")
            await trio.testing.wait_all_tasks_blocked()
            catalog.primary = "east"

            async def ask() -> None:
                latest.append(await cache.latest(known))

            nursery.start_soon(ask)
            await trio.testing.wait_all_tasks_blocked()
            catalog.may_answer.set()

    trio.run(main)
    assert latest[0].primary == "east"


async def test_collections_that_were_read_longest_ago_are_forgotten_when_there_are_too_many() -> None:
    async with trio.open_nursery() as nursery:
        cache = RoutingCache(cast("CatalogClient", FakeCatalog()), nursery)
        first = await cache.collection("shop.first")
        second = await cache.collection("shop.second")
        cache.invalidate(first)
        first = await cache.collection("shop.first")
        for number in range(COLLECTIONS_MAX - 1):
            await cache.collection(f"shop.unknown{number}")
        assert len(cache.collections) == COLLECTIONS_MAX
        assert cache.collections["shop.first"] is first
        assert await cache.collection("shop.second") is not second
