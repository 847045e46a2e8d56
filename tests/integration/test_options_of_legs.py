"""The options of an aggregation are in every command that the shards' mongods run, as their profilers see it."""

from collections.abc import Iterator
from typing import Any, Final

import pytest
from pymongo.database import Database

from tests.integration.sharded import Document, shard_by_hash, shard_by_range
from tests.local_cluster import Client

FOR_ALL: Final[Document] = {
    "allowDiskUse": True,
    "collation": {"locale": "en", "strength": 2},
    "let": {"low": 3},
    "maxTimeMS": 60_000,
}
CONCERN: Final[Document] = {"level": "majority"}

PIPELINES: Final[dict[str, tuple[list[Document], int]]] = {
    "merged by the router": ([{"$sort": {"key": 1}}], 2),
    "merged by a shard": ([{"$match": {"$expr": {"$gt": ["$key", "$$low"]}}}, {"$group": {"_id": "$key"}}], 3),
    "joined": ([{"$lookup": {"from": "hashed", "localField": "key", "foreignField": "key", "as": "j"}}], 5),
    "united": ([{"$unionWith": "hashed"}, {"$sort": {"_id": 1}}], 4),
}
"""Pipelines, and how many aggregations they take at least."""


@pytest.fixture
def profiled(database: Database[Document], lower_mongod: Client, upper_mongod: Client) -> Iterator[list[Any]]:
    """The profiles of both shards."""
    for collection in (shard_by_range(database), shard_by_hash(database)):
        collection.insert_many({"_id": number, "key": number * 100} for number in range(10))
    mongods = [each[database.name] for each in (lower_mongod, upper_mongod)]
    for mongod in mongods:
        mongod.command("profile", 2)
    yield [mongod["system.profile"] for mongod in mongods]
    for mongod in mongods:
        mongod.command("profile", 0)


def test_every_command_has_the_options(database: Database[Document], profiled: list[Any]) -> None:
    for name, (pipeline, legs_min) in PIPELINES.items():
        for_all = {**FOR_ALL, "comment": {"of": name}}
        command = {"aggregate": "ranged", "pipeline": pipeline, "cursor": {"batchSize": 2}, "hint": {"_id": 1}}
        cursor = database.command({**command, "readConcern": CONCERN, **for_all})["cursor"]
        more = {"getMore": cursor["id"], "collection": "ranged", "batchSize": 3, "comment": {"of": name}}
        assert [len(cursor["firstBatch"]), len(database.command(more)["cursor"]["nextBatch"])] == [2, 3]
        database.command("killCursors", "ranged", cursors=[cursor["id"]])
        about = {"command.comment": {"of": name}, "command.aggregate": {"$exists": True}}
        legs = [each["command"] for profile in profiled for each in profile.find(about)]
        assert len(legs) >= legs_min, name
        for leg in legs:
            assert leg.items() >= for_all.items()
            # What joins documents that are handed to it reads no collection.
            assert leg.get("readConcern", {}).get("level") == (None if leg["aggregate"] == 1 else CONCERN["level"])
            is_first = leg["aggregate"] == "ranged" and "$mergeCursors" not in str(leg["pipeline"])
            assert leg.get("hint") == ({"_id": 1} if is_first else None)
