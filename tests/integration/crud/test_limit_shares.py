"""Sorted finds with a limit request a share from each shard; the result is always complete."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from bson.max_key import MaxKey
from pymongo.database import Database

from tests.integration.sharded import LOWER, SPLIT_AT, UPPER, Document, Documents, shard_by_hash, shard_by_range
from tests.local_cluster import Client

COUNT = 1_000
LIMIT = 100
LARGE_BYTES = 400_000


@pytest.fixture
def mongods(lower_mongod: Client, upper_mongod: Client) -> Sequence[Client]:
    """The mongods of both shards."""
    return lower_mongod, upper_mongod


@pytest.fixture
def even(database: Database[Document]) -> Documents:
    """A new collection in which a document's shard does not depend on its ``n``."""
    collection = shard_by_hash(database)
    fill(collection)
    return collection


def fill(collection: Documents) -> None:
    """Insert the documents."""
    collection.insert_many({"_id": n, "n": n, "half": n // 2} for n in range(COUNT))


@pytest.fixture
def skewed(database: Database[Document]) -> Documents:
    """A collection whose lower ``n`` are all on one shard."""
    collection = shard_by_range(database, "skewed", key="n")
    collection.insert_many({"_id": n, "n": n} for n in range(COUNT))
    return collection


@contextmanager
def limits_sent(mongods: Sequence[Client], collection: Documents) -> Iterator[list[list[int]]]:
    """After the block, the limits that each shard has got in the finds on a collection, in order."""
    limits: list[list[int]] = []
    databases = [mongod[collection.database.name] for mongod in mongods]
    for database in databases:
        database.command("profile", 2)
    yield limits
    for database in databases:
        database.command("profile", 0)
        found = database["system.profile"].find({"ns": collection.full_name, "command.find": {"$exists": True}})
        limits.append([each["command"]["limit"] for each in found.sort("ts", 1)])
        database["system.profile"].drop()


def found(collection: Documents, **arguments: Any) -> list[Any]:  # noqa: ANN401 - as find
    """The identities of the documents found."""
    reply = collection.database.command("find", collection.name, **arguments)
    documents = reply["cursor"]["firstBatch"]
    while cursor_id := reply["cursor"]["id"]:
        reply = collection.database.command("getMore", cursor_id, collection=collection.name)
        documents += reply["cursor"]["nextBatch"]
    return [document["_id"] for document in documents]


def test_evenly_distributed_documents_need_one_share_of_each_shard(mongods: Sequence[Client], even: Documents) -> None:
    with limits_sent(mongods, even) as limits:
        assert found(even, sort={"n": 1}, limit=LIMIT) == list(range(LIMIT))
    assert limits == [[66], [66]]


def test_documents_on_one_shard_are_asked_for_again(mongods: Sequence[Client], skewed: Documents) -> None:
    with limits_sent(mongods, skewed) as limits:
        for _ in range(8):
            assert found(skewed, sort={"n": 1}, limit=LIMIT) == list(range(LIMIT))
    assert limits[0] == limits[1]
    assert limits[0][:2] == [66, LIMIT]
    assert limits[0][-3:] == [LIMIT] * 3, "shares are no longer tried"


@pytest.mark.parametrize(
    "arguments",
    [
        {"sort": {"n": -1}, "limit": LIMIT},
        {"sort": {"n": 1}, "limit": 60, "skip": 20},
        {"sort": {"n": 1}, "limit": 60, "skip": 400},
        {"sort": {"n": 1}, "limit": 90, "projection": {"_id": 1}},
        {"sort": {"half": 1, "n": 1}, "limit": 300, "batchSize": 300},
        {"sort": {"n": 1}, "limit": 300},
        {"sort": {"n": 1}, "limit": 100, "batchSize": 50},
        {"sort": {"n": 1}, "limit": 100, "batchSize": 50, "singleBatch": True},
        {"sort": {"n": 1}, "limit": 100, "filter": {"n": {"$gte": COUNT - 50}}},
        {"sort": {"n": 1}, "limit": 100, "readConcern": {"level": "snapshot"}},
        {"sort": {"n": 1}, "limit": 100, "collation": {"locale": "en", "numericOrdering": True}},
    ],
)
def test_arguments(hashed: Documents, arguments: dict[str, Any]) -> None:
    fill(hashed)
    documents = sorted(range(COUNT), reverse=arguments["sort"].get("n") == -1)
    documents = [n for n in documents if n >= arguments.get("filter", {}).get("n", {}).get("$gte", 0)]
    skip, limit = arguments.get("skip", 0), arguments["limit"]
    limit = arguments["batchSize"] if "singleBatch" in arguments else limit
    assert found(hashed, **arguments) == documents[skip : skip + limit]


def test_a_result_that_is_too_large_for_one_batch(database: Database[Document]) -> None:
    collection = shard_by_hash(database, "large")
    for start in range(0, 60, 20):
        collection.insert_many({"_id": n, "n": n, "text": "x" * LARGE_BYTES} for n in range(start, start + 20))
    assert found(collection, sort={"n": 1}, limit=60) == list(range(60))


def test_a_stale_router_finds_everything(client: Client, other_client: Client, skewed: Documents) -> None:
    assert found(skewed, sort={"_id": 1}, limit=LIMIT) == list(range(LIMIT))
    move: Document = {"find": {"n": SPLIT_AT}, "to": LOWER, "_waitForDelete": True}
    other_client.admin.command("moveChunk", skewed.full_name, **move)
    assert found(skewed, sort={"n": -1}, limit=LIMIT) == list(range(COUNT - 1, COUNT - 1 - LIMIT, -1))
    other_client.admin.command("split", skewed.full_name, middle={"n": 50})
    other_client.admin.command(
        "moveChunk", skewed.full_name, bounds=[{"n": SPLIT_AT}, {"n": MaxKey()}], to=UPPER, _waitForDelete=True
    )
    assert found(skewed, sort={"_id": 1}, limit=LIMIT) == list(range(LIMIT))


def test_in_a_transaction_shards_are_asked_for_all(mongods: Sequence[Client], even: Documents) -> None:
    with limits_sent(mongods, even) as limits, even.database.client.start_session() as session:
        with session.start_transaction():
            documents = list(even.find({}, session=session, sort=[("n", 1)], limit=LIMIT))
        assert [document["_id"] for document in documents] == list(range(LIMIT))
    assert limits == [[LIMIT], [LIMIT]]
