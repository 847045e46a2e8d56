"""``_configsvrRepairShardedCollectionChunksHistory`` of a collection with more chunks than one step repairs."""

from itertools import pairwise

import pytest
import trio
from bson.max_key import MaxKey
from bson.min_key import MinKey

from shardwright.configd.commands import chunk_commits
from shardwright.wire.errors import CommandError
from tests.configd.catalog_user import CatalogUser, Sharded
from tests.configd.fake_shard import FakeShard
from tests.configd.in_process import Fault, in_process
from tests.shardd.mini_cluster import Set

BOUNDS = [MinKey(), 0, 10, 20, 30, MaxKey()]


@pytest.fixture
def sharded(catalog: CatalogUser, request: pytest.FixtureRequest) -> Sharded:
    """A collection with five chunks, on two shards in turn."""
    chunks = [(low, high, "ab"[number % 2]) for number, (low, high) in enumerate(pairwise(BOUNDS))]
    return catalog.shard_collection(f"repaired.{request.node.name}", chunks)


def repaired_versions(catalog: CatalogUser, sharded: Sharded) -> list[tuple[int, int]]:
    """The versions of the chunks that are marked, in order."""
    marked = [chunk for chunk in catalog.chunks(sharded) if chunk.get("historyIsAt40")]
    assert all(len(chunk["history"]) == 1 for chunk in marked)
    return [(chunk["lastmod"].time, chunk["lastmod"].inc) for chunk in marked]


def test_an_interrupted_repair_goes_on_where_it_stopped(
    catalog: CatalogUser,
    sharded: Sharded,
    shards: dict[str, FakeShard],
    config_set: Set,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(chunk_commits, "CHUNKS_PER_STEP", 2)
    repair = {"_configsvrRepairShardedCollectionChunksHistory": sharded.namespace}

    async def body() -> None:
        async with in_process(config_set) as server:
            server.mongod.fault = Fault(2, is_made=False)
            with pytest.raises(CommandError):
                await server.run(repair)
            assert repaired_versions(catalog, sharded) == [(2, 0), (2, 1)]
            server.mongod.fault = None
            await server.run(repair)
            assert repaired_versions(catalog, sharded) == [(2, 0), (2, 1), (3, 0), (3, 1), (4, 0)]
            await server.run(repair)
            assert repaired_versions(catalog, sharded) == [(2, 0), (2, 1), (3, 0), (3, 1), (4, 0)]
            await server.run({**repair, "force": True})
            assert repaired_versions(catalog, sharded) == [(5, 0), (5, 1), (6, 0), (6, 1), (7, 0)]

    trio.run(body)
    assert all(shard.received("_flushRoutingTableCacheUpdatesWithWriteConcern") for shard in shards.values())
