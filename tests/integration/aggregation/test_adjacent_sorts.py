"""Of adjacent ``$sort`` stages the last one decides, as on one mongod, in random pipelines."""

from collections.abc import Iterator
from random import Random

import pytest
from pymongo.database import Database
from pymongo.errors import OperationFailure

from tests.integration.sharded import LOWER, UPPER, Document, shard_collection
from tests.local_cluster import Client
from tests.sampling import many

NAME = "adjacent_sorts"
SEED = 11


def documents() -> list[Document]:
    """Some with two arrays, which no sort may have as parallel keys."""
    random = Random(SEED)
    return [
        {
            "_id": number,
            "k": number % 20,
            "a": random.randint(0, 5),
            "b": random.choice([None, "x", 2.5, random.randint(0, 9)]),
            "x": [1, 2] if number % 9 == 0 else number,
            "y": [3] if number % 18 == 0 else -number,
        }
        for number in range(120)
    ]


@pytest.fixture(scope="module")
def sharded(client: Client) -> Iterator[Database[Document]]:
    client.admin.command("enableSharding", NAME, primaryShard=LOWER)
    shard_collection(client[NAME], "c", {"k": 1})
    client.admin.command("split", f"{NAME}.c", middle={"k": 10})
    client.admin.command("moveChunk", f"{NAME}.c", find={"k": 15}, to=UPPER)
    client[NAME]["c"].insert_many(documents())
    yield client[NAME]
    client.drop_database(NAME)


@pytest.fixture(scope="module")
def alone(lower_mongod: Client) -> Iterator[Database[Document]]:
    database = lower_mongod[f"{NAME}_alone"]
    database["c"].insert_many(documents())
    yield database
    lower_mongod.drop_database(database.name)


def random_sort(random: Random) -> Document:
    """A sort that decides about all documents, or one that fails if it is executed."""
    if random.random() < 0.2:
        return {"$sort": {"x": 1, "y": random.choice([1, -1])}}
    names = random.sample(["a", "b", "k"], random.randint(0, 2))
    return {"$sort": {name: random.choice([1, -1, 1.5]) for name in names} | {"_id": random.choice([1, -1])}}


def random_pipeline(random: Random) -> list[Document]:
    """Sorts, adjacent or with other stages between, and at the end one of all documents."""
    others: list[Document] = [
        {"$limit": random.randint(1, 60)},
        {"$skip": random.randint(0, 30)},
        {"$match": {"a": {"$gte": random.randint(0, 2)}}},
        {"$addFields": {"z": "$a"}},
        {"$lookup": {"from": "none", "localField": "a", "foreignField": "a", "as": "found"}},
    ]
    stages: list[Document] = [{"$sort": {"_id": 1}}]
    for _ in range(random.randint(1, 5)):
        stages += [random_sort(random)] if random.random() < 0.7 else [random.choice(others)]
    return [*stages, {"$sort": {"a": random.choice([1, -1]), "_id": random.choice([1, -1])}}, *random.sample(others, 1)]


def result(database: Database[Document], pipeline: list[Document]) -> object:
    try:
        return list(database["c"].aggregate(pipeline))
    except OperationFailure as error:
        return error.code, str((error.details or {})["errmsg"]).rpartition(" :: caused by :: ")[2]


def test_the_last_of_adjacent_sorts_decides(sharded: Database[Document], alone: Database[Document]) -> None:
    random = Random(SEED)
    for _ in range(many(600, 150)):
        pipeline = random_pipeline(random)
        assert result(sharded, pipeline) == result(alone, pipeline), pipeline


@pytest.mark.parametrize(
    "first", [{"x": 1, "y": 1}, {"a": {"$meta": "textScore"}}, {"": 1}, {"a": 2}, {}, {"a": True}, 5], ids=str
)
def test_a_sort_without_effect_is_checked_but_not_executed(
    sharded: Database[Document], alone: Database[Document], first: object
) -> None:
    for between in ([], [{"$match": {"a": {"$gte": 1}}}], [{"$limit": 50}]):
        pipeline: list[Document] = [{"$sort": first}, *between, {"$sort": {"_id": -1}}]
        assert result(sharded, pipeline) == result(alone, pipeline), pipeline
