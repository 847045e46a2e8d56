"""Concurrent operations on the same collection are serializable."""

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import pytest
import trio
import trio.testing
from bson.max_key import MaxKey
from bson.min_key import MinKey
from pymongo.errors import OperationFailure

from shardwright.configd.term.term import NamedLocks
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from tests.configd.catalog_user import CatalogUser
from tests.configd.in_process import in_process
from tests.shardd.mini_cluster import Set

LOW, HIGH = MinKey(), MaxKey()


def test_splits_of_all_chunks_at_once_get_different_versions(catalog: CatalogUser) -> None:
    bounds = [LOW, *range(10, 80, 10), HIGH]
    chunks = [(low, high, "a") for low, high in pairwise(bounds)]
    sharded = catalog.shard_collection("concurrency.splits", chunks)

    def split(number: int) -> dict[str, Any]:
        low, high, _ = chunks[number]
        return catalog.split(sharded, low, high, number * 10 + 5)

    with ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(split, range(8)))
    assert len({reply["collectionVersion"]["v"] for reply in replies}) == 8
    assert max(version for _, _, _, version in catalog.bounds(sharded)) == (1, 7 + 16)
    assert len(catalog.bounds(sharded)) == 16


def test_the_same_migration_committed_concurrently_is_committed_once(catalog: CatalogUser) -> None:
    sharded = catalog.shard_collection("concurrency.moves", [(LOW, 0, "a"), (0, HIGH, "b")])
    version = sharded.version(catalog.chunks(sharded)[1]["lastmod"])
    now = catalog.now()

    def move(_: int) -> int:
        command = {
            "_configsvrCommitChunkMigration": sharded.namespace,
            "fromShard": "a",
            "toShard": "b",
            "migratedChunk": {"min": {"x": LOW}, "max": {"x": 0}, "lastmod": version},
            "fromShardCollectionVersion": version,
            "validAfter": now,
        }
        try:
            catalog.run(command)
        except OperationFailure as failure:
            return failure.code or 0
        return 0

    with ThreadPoolExecutor(4) as pool:
        codes = list(pool.map(move, range(4)))
    assert codes == [0] * 4
    assert [shard for _, _, shard, _ in catalog.bounds(sharded)] == ["b", "b"]
    assert max(version for _, _, _, version in catalog.bounds(sharded)) == (2, 0)


def test_two_concurrent_primaries_cannot_break_the_catalog(catalog: CatalogUser, config_set: Set) -> None:
    """One that has not noticed that it was deposed does not share the locks of the other."""
    sharded = catalog.shard_collection("concurrency.deposed")
    command = {
        "_configsvrCommitChunkSplit": sharded.namespace,
        "collEpoch": sharded.epoch,
        "min": {"x": LOW},
        "max": {"x": HIGH},
        "shard": "a",
    }

    async def main() -> None:
        codes: list[int] = []

        async def split(point: int) -> None:
            async with in_process(config_set) as server:
                try:
                    await server.run({**command, "splitPoints": [{"x": point}]})
                except CommandError as error:
                    codes.append(error.code)

        async with trio.open_nursery() as nursery:
            for point in range(4):
                nursery.start_soon(split, point)
        assert codes == [ErrorCode.BadValue] * 3

    trio.run(main)
    assert len(catalog.bounds(sharded)) == 2


async def test_locks_are_granted_in_order_and_removed() -> None:
    locks = NamedLocks()
    order: list[int] = []

    async def use(number: int, *names: str) -> None:
        async with locks.hold(*names):
            order.append(number)

    async with trio.open_nursery() as nursery, locks.hold("b", "a"):
        for number, names in enumerate([("a", "b", "a"), ("b",), ("a",)]):
            nursery.start_soon(use, number, *names)
            await trio.testing.wait_all_tasks_blocked()
        assert not order
        assert locks.names_in_use == {"a", "b"}
    assert order.index(0) < order.index(2)
    assert sorted(order) == [0, 1, 2]
    assert not locks.names_in_use


async def test_a_lock_that_was_never_granted_is_removed() -> None:
    locks = NamedLocks()
    async with locks.hold("x"):
        with trio.move_on_after(0) as scope:
            async with locks.hold("x"):
                pytest.fail("held twice")
        assert scope.cancelled_caught
        assert locks.names_in_use == {"x"}
    assert not locks.names_in_use
