"""Results stream through the router, which holds only a part of them; results that it must hold whole have a limit."""

from collections.abc import Iterator
from typing import Final

import pytest
from pymongo.database import Database
from pymongo.errors import OperationFailure

from bench.memory import PeakMemory, resident_bytes
from tests.integration.sharded import LOWER, Document, shard_by_hash
from tests.local_cluster import Client, RunningCluster

MEGABYTE: Final = "x" * 1_000_000
COUNT: Final = 110
"""Megabytes in the sharded collection: more than a stage may hold."""
GROWTH_MAX: Final = 128 << 20
"""A part of the data that passes through: batches of 16 MB from both shards, as received and as sent."""

EQUAL: Final[Document] = {"localField": "g", "foreignField": "g"}
LOOKUP: Final[Document] = {"$lookup": {"from": "huge", **EQUAL, "as": "r"}}
GRAPH: Final[Document] = {
    "$graphLookup": {
        "from": "huge",
        "startWith": "$g",
        "connectFromField": "none",
        "connectToField": "g",
        "as": "r",
    }
}
UNION: Final[Document] = {"$unionWith": "huge"}
SIZE: Final[Document] = {"$project": {"n": {"$size": "$r"}}}

THREE_TIMES: Final = [UNION] * 3

STREAMING: Final[dict[str, tuple[list[Document], int]]] = {
    "united": (THREE_TIMES, 3 * COUNT + 2),
    "joined and unwound": ([LOOKUP, {"$unwind": "$r"}], 2 * COUNT),
    "in a facet": ([*THREE_TIMES, {"$facet": {"n": [{"$count": "n"}], "few": [{"$limit": 1}, {"$count": "n"}]}}], 1),
    "grouped behind a union": (
        [*THREE_TIMES, {"$group": {"_id": "$_id", "n": {"$sum": {"$bsonSize": "$$ROOT"}}}}],
        COUNT,
    ),
}
"""Pipelines through which all megabytes pass several times, and how many results they have."""


@pytest.fixture(scope="module")
def data(client: Client) -> Iterator[Database[Document]]:
    """A large sharded collection, and two documents that are joined with all of it."""
    database = client["memory_of_the_router"]
    client.admin.command("enableSharding", database.name, primaryShard=LOWER)
    shard_by_hash(database, "huge")
    for start in range(0, COUNT, 10):
        database.huge.insert_many({"_id": n, "g": 0, "pad": MEGABYTE} for n in range(start, start + 10))
    database.local.insert_many([{"_id": n, "g": 0} for n in range(2)])
    yield database
    client.drop_database(database.name)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.exhaustive] * (name == "joined and unwound")) for name in STREAMING],
)
def test_results_stream(cluster: RunningCluster, data: Database[Document], name: str) -> None:
    pipeline, count = STREAMING[name]
    router = cluster.pid("router.0")
    with PeakMemory({"router": router}) as memory:
        before = resident_bytes(router)
        assert sum(1 for _ in data.local.aggregate(pipeline, batchSize=4)) == count
    assert memory.peak["router"] - before < GROWTH_MAX


@pytest.mark.parametrize(("join", "code"), [(LOOKUP, 4568), (GRAPH, 40099)], ids=["lookup", "graph"])
def test_a_document_cannot_be_joined_with_more_than_100_megabytes(
    data: Database[Document], join: Document, code: int
) -> None:
    with pytest.raises(OperationFailure) as failure:
        list(data.local.aggregate([join, SIZE]))
    assert failure.value.code == code
