"""``allowDiskUse`` in the commands that the shards' mongods run: with it they spill, without it they fail."""

from collections.abc import Iterator
from typing import Final

import pytest
from pymongo.database import Database
from pymongo.errors import OperationFailure

from tests.integration.profiles import Profiles, profiling
from tests.integration.sharded import LOWER, Document, shard_by_hash, shard_by_range
from tests.local_cluster import Client

COUNT: Final = 400
PAD: Final = "x" * 20_000
LIMIT: Final = 1 << 20
"""Bytes that a stage of a mongod may hold during these tests; each shard has four times as many."""
EXCEEDED: Final = 292
PARAMETERS: Final[Document] = {
    "internalDocumentSourceGroupMaxMemoryBytes": LIMIT,
    "internalQueryMaxBlockingSortMemoryUsageBytes": LIMIT,
    # The other engine does not tell the profiler that it has spilled.
    "internalQueryForceClassicEngine": True,
}

BY_PAD: Final[Document] = {"$sort": {"pad": 1, "key": -1}}
GROUP: Final[Document] = {"$group": {"_id": "$key", "pad": {"$first": "$pad"}}}
SIZE: Final[Document] = {"$project": {"pad": {"$strLenBytes": "$pad"}}}
LOOKUP: Final[Document] = {"$lookup": {"from": "other", "localField": "key", "foreignField": "_id", "as": "j"}}
PIPELINES: Final[dict[str, tuple[list[Document], int]]] = {
    "sorted on the shards, merged by the router": ([BY_PAD, SIZE], 2),
    "grouped on the shards and on the merger": ([GROUP, SIZE, {"$sort": {"_id": 1}}], 1),
    "grouped, and sorted on the merger": ([GROUP, {"$sort": {"pad": 1, "_id": -1}}, SIZE], 1),
    "grouped behind a join": ([LOOKUP, GROUP, SIZE, {"$sort": {"_id": 1}}], 0),
    "sorted behind a join": ([LOOKUP, {"$addFields": {"n": {"$size": "$j"}}}, {"$sort": {"n": 1, "key": 1}}, SIZE], 0),
    "in a facet behind a join": ([LOOKUP, {"$facet": {"n": [GROUP, {"$count": "n"}]}}], 0),
}
"""Pipelines, with the number of their commands that report spilling to the profiler.

Partial groups do not report it. Stages after a join run on no collection, so they are not profiled anywhere.
"""


@pytest.fixture(scope="module")
def data(client: Client) -> Iterator[Database[Document]]:
    """The same documents in ``ranged``, on both shards, and ``plain``; ``other`` is sharded."""
    database = client["disk_use"]
    client.admin.command("enableSharding", database.name, primaryShard=LOWER)
    shard_by_range(database, split_at=COUNT // 2)
    shard_by_hash(database, "other").insert_many({"_id": n} for n in range(0, COUNT, 7))
    for name in ("ranged", "plain"):
        database[name].insert_many({"_id": n, "key": n, "pad": PAD} for n in range(COUNT))
    yield database
    client.drop_database(database.name)


@pytest.fixture(autouse=True)
def limited(lower_mongod: Client, upper_mongod: Client) -> Iterator[None]:
    """Stages of the shards' mongods hold little."""
    before = []
    for mongod in (lower_mongod, upper_mongod):
        given = mongod.admin.command({"getParameter": 1, **dict.fromkeys(PARAMETERS, 1)})
        before.append((mongod, {name: given[name] for name in PARAMETERS}))
        _set(mongod, PARAMETERS)
    yield
    for mongod, values in before:
        _set(mongod, values)


def _set(mongod: Client, values: Document) -> None:
    for name, value in values.items():
        mongod.admin.command({"setParameter": 1, name: value})


@pytest.fixture
def profiled(data: Database[Document], lower_mongod: Client, upper_mongod: Client) -> Iterator[Profiles]:
    """The profiles of both shards."""
    with profiling(data, lower_mongod, upper_mongod) as profiles:
        yield profiles


@pytest.mark.parametrize("name", PIPELINES)
def test_what_may_use_disks_spills(data: Database[Document], profiled: Profiles, name: str) -> None:
    pipeline, spilling = PIPELINES[name]
    sharded, plain = (
        list(data[source].aggregate(pipeline, allowDiskUse=True, comment=f"{name} of {source}", batchSize=50))
        for source in ("ranged", "plain")
    )
    assert sharded == plain
    comment = f"{name} of ranged"
    about = [{"command.comment": comment}, {"originatingCommand.comment": comment}]
    spilled = profiled.entries({"usedDisk": True, "$or": about})
    cursors = {each.get("cursorid", each["ts"]) for each in spilled}
    assert len(cursors) >= spilling


@pytest.mark.parametrize("name", PIPELINES)
def test_what_may_not_fails(data: Database[Document], name: str) -> None:
    pipeline, _ = PIPELINES[name]
    for source in ("plain", "ranged"):
        with pytest.raises(OperationFailure) as failure:
            list(data[source].aggregate(pipeline, allowDiskUse=False))
        assert failure.value.code == EXCEEDED, source
