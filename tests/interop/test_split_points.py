"""Split points of a genuine shard's ``autoSplitVector`` compared with the ones found on a plain mongod."""

from bisect import bisect_left
from collections.abc import Iterator
from random import Random
from typing import Any

import bson
import pytest
from bson.max_key import MaxKey
from bson.min_key import MinKey
from pymongo import MongoClient

from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.shardd.splitting.chunk_splitter import find_split_points
from shardwright.sharding.routing_table import RoutingTable
from tests.genuine_cluster import SHARDS, GenuineCluster
from tests.shardd.lone_mongod import LoneMongod, lone_mongod
from tests.sharding.chunk_worlds import COLLECTION, chunk

MB = 1 << 20


@pytest.fixture(scope="module")
def lone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoneMongod]:
    with lone_mongod(tmp_path_factory.mktemp("lone")) as mongod:
        yield mongod


def documents(number: int, size: int, copies: int) -> list[dict[str, Any]]:
    keys = [each // copies for each in range(number)]
    Random(1).shuffle(keys)
    return [{"x": key, "v": "x" * size} for key in keys]


@pytest.mark.parametrize(
    ("number", "size", "copies"),
    [
        (75, 100_000, 1),
        (300, 20_000, 1),
        (60, 20_000, 1),
        (90, 20_000, 1),
        (3000, 1000, 1),
        (300, 20_000, 40),
    ],
)
def test_split_points(genuine: GenuineCluster, lone: LoneMongod, number: int, size: int, copies: int) -> None:
    """There are as many points, each within an eighth of a chunk, or two documents, of the genuine one."""
    inserted = documents(number, size, copies)
    request = {
        "autoSplitVector": "c",
        "keyPattern": {"x": 1},
        "min": {"x": MinKey()},
        "max": {"x": MaxKey()},
        "maxChunkSizeBytes": MB,
    }
    for address in (genuine.shards[SHARDS[0]], lone.address):
        with MongoClient[dict[str, Any]](f"mongodb://{address}/", directConnection=True) as client:
            client.drop_database("d")
            client.d.c.insert_many([dict(each) for each in inserted])
            client.d.c.create_index("x")
            if address != lone.address:
                expected = [each["x"] for each in client.d.command(request)["splitKeys"]]
                client.drop_database("d")
    found: list[int] = []

    async def ask(mongod: LocalMongod) -> None:
        placed = chunk(MinKey(), MaxKey(), "a", 1, 0)
        table = RoutingTable.build(COLLECTION, [placed.placement])
        points = await find_split_points(mongod, table, next(table.chunks()), MB)
        found.extend(bson.decode(key)["x"] for key in points)

    lone.run(ask)
    ordered = sorted(each["x"] for each in inserted)
    per_chunk = MB // size
    places = [[bisect_left(ordered, key) for key in keys] for keys in (expected, found)]
    print(places)
    if copies > 1:  # no part is larger than necessary, but the last ones may be smaller
        assert places[1][: len(expected)] == places[0]
        return
    assert len(found) == len(expected), places
    assert all(abs(left - right) <= max(2, per_chunk // 8) for left, right in zip(*places, strict=True)), places
