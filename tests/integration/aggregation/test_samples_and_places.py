"""``$sample`` and ``$geoNear`` over several shards."""

from collections.abc import Iterator
from typing import Final

import pytest
from pymongo.database import Database

from tests.integration.sharded import Document, shard_by_range
from tests.local_cluster import Client

COUNT: Final = 40
NEAR: Final[Document] = {"type": "Point", "coordinates": [10.25, 0.5]}


@pytest.fixture(scope="module")
def data(client: Client) -> Iterator[Database[Document]]:
    """The same documents in ``ranged``, on both shards, and ``plain``, each at a different place."""
    database = client["samples_and_places"]
    shard_by_range(database)
    for name in ("ranged", "plain"):
        database[name].insert_many(
            {
                "_id": n,
                "key": n * 25,
                "g": n % 3,
                "point": {"type": "Point", "coordinates": [n, 0]},
                "far": [[n, 0], [n, 60]],
            }
            for n in range(COUNT)
        )
        database[name].create_index([("point", "2dsphere")])
        database[name].create_index([("far", "2d")])
    yield database
    client.drop_database(database.name)


@pytest.mark.parametrize("size", [1, 7, COUNT - 1, COUNT, 10 * COUNT])
@pytest.mark.parametrize("before", [[], [{"$match": {"key": {"$gte": 0}}}], [{"$sort": {"key": 1}}]], ids=str)
def test_a_sample_has_whole_different_documents(data: Database[Document], before: list[Document], size: int) -> None:
    stored = {each["_id"]: each for each in data.plain.find()}
    sampled = list(data.ranged.aggregate([*before, {"$sample": {"size": size}}], batchSize=3))
    assert len(sampled) == len({each["_id"] for each in sampled}) == min(size, COUNT)
    assert all(each == stored[each["_id"]] for each in sampled)


def test_samples_differ_and_are_of_all_shards(data: Database[Document]) -> None:
    samples = [tuple(each["_id"] for each in data.ranged.aggregate([{"$sample": {"size": 5}}])) for _ in range(40)]
    assert len(set(samples)) > 1
    assert {number < COUNT // 2 for sample in samples for number in sample} == {True, False}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"query": {"g": 1}},
        {"query": {"key": {"$gte": 600}}},
        {"minDistance": 300_000, "maxDistance": 1_500_000},
        {"distanceMultiplier": 0.001},
        {"includeLocs": "found.at"},
        {"near": [10.25, 0.5], "spherical": True},
        {"near": [10.25, 0.5], "key": "far", "includeLocs": "at"},
        {"near": [10.25, 0.5], "key": "far", "maxDistance": 6, "query": {"g": {"$ne": 1}}, "distanceMultiplier": 2},
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "after",
    [
        [],
        [{"$limit": 6}],
        [{"$skip": 3}, {"$limit": 5}, {"$project": {"distance": 1}}],
        [{"$match": {"g": {"$ne": 2}}}, {"$limit": 4}],
        [{"$group": {"_id": "$g", "nearest": {"$first": "$_id"}}}, {"$sort": {"_id": 1}}],
    ],
    ids=str,
)
@pytest.mark.matrix
def test_places_near_a_point(data: Database[Document], options: Document, after: list[Document]) -> None:
    near: Document = {"$geoNear": {"near": NEAR, "key": "point", "distanceField": "distance", **options}}
    sharded, plain = (list(data[name].aggregate([near, *after], batchSize=4)) for name in ("ranged", "plain"))
    assert sharded == plain
    assert sharded
