"""The number of times that the router reads the other collection of a join, counted by the shards' profilers."""

from collections.abc import Iterator
from typing import Final

import pytest
from pymongo.database import Database

from tests.integration.profiles import Profiles, profiling
from tests.integration.sharded import Document, shard_by_hash, shard_by_range
from tests.local_cluster import Client

DOCUMENTS: Final = 1_500
BATCHES: Final = 4
"""Number of these batches; the first ones come from the shards' first replies."""
DIFFERENT: Final = 4
"""Number of different values of ``g``."""
SHARDS: Final = 2

OF_GROUP: Final[list[Document]] = [{"$match": {"$expr": {"$eq": ["$g", "$$g"]}}}]
READS: Final[dict[str, tuple[Document, int]]] = {
    "one result": ({"$lookup": {"from": "other", "pipeline": [{"$match": {"g": 1}}], "as": "j"}}, 1),
    "equality": ({"$lookup": {"from": "other", "localField": "g", "foreignField": "g", "as": "j"}}, BATCHES),
    "variables": (
        {"$lookup": {"from": "other", "let": {"g": "$g"}, "pipeline": OF_GROUP, "as": "j"}},
        BATCHES * DIFFERENT,
    ),
    "graph": (
        {
            "$graphLookup": {
                "from": "other",
                "startWith": "$g",
                "connectFromField": "none",
                "connectToField": "g",
                "as": "j",
            }
        },
        BATCHES * DIFFERENT,
    ),
    "union": ({"$unionWith": "other"}, 1),
}
"""Joins, and how often at most they read all shards: once, for each batch, or for each value in a batch."""


@pytest.fixture(scope="module")
def profiled(
    client: Client, lower_mongod: Client, upper_mongod: Client
) -> Iterator[tuple[Database[Document], Profiles]]:
    """A database with two sharded collections, and the profiles of both shards."""
    database = client["reads_of_joins"]
    shard_by_range(database, split_at=DOCUMENTS // 2).insert_many(
        {"_id": n, "key": n, "g": n % DIFFERENT} for n in range(DOCUMENTS)
    )
    shard_by_hash(database, "other").insert_many({"_id": n, "g": n} for n in range(DIFFERENT))
    with profiling(database, lower_mongod, upper_mongod) as profiles:
        yield database, profiles
    client.drop_database(database.name)


@pytest.mark.parametrize("name", READS)
def test_reads_of_the_other_collection(profiled: tuple[Database[Document], Profiles], name: str) -> None:
    database, profiles = profiled
    stage, reads_max = READS[name]
    count = sum(1 for _ in database.ranged.aggregate([stage], comment=name))
    assert count == DOCUMENTS + (DIFFERENT if name == "union" else 0)
    reads = [leg for leg in profiles.aggregations(name) if leg["aggregate"] == "other"]
    assert SHARDS <= len(reads) <= SHARDS * reads_max
