"""Aggregations over several shards give what one mongod gives that has the same documents."""

from collections.abc import Iterator
from typing import Any

import bson
import pytest
from hypothesis import HealthCheck, given, settings
from pymongo.collection import Collection
from pymongo.database import Database
from pymongo.errors import OperationFailure

from tests.integration.pipeline_strategies import DOCUMENTS, OTHER, pipelines
from tests.integration.sharded import LOWER, UPPER, Document
from tests.local_cluster import Client
from tests.sampling import many

SHARD_KEYS: dict[str, Document] = {
    "ranged": {"k": 1},
    "hashed": {"k": "hashed"},
    "compound": {"a": 1, "k": 1},
}


@pytest.fixture(scope="module")
def stored(client: Client) -> Iterator[Database[Document]]:
    """A collection for each shard key, and a plain one, on both shards."""
    database = client["aggregation_properties"]
    client.admin.command("enableSharding", database.name, primaryShard=LOWER)
    for name, key in SHARD_KEYS.items():
        namespace = f"{database.name}.{name}"
        client.admin.command("shardCollection", namespace, key=key)
        if name != "hashed":
            middle = {field: 3 if field == "a" else 10 for field in key}
            client.admin.command("split", namespace, middle=middle)
            client.admin.command("moveChunk", namespace, find=middle, to=UPPER)
    database[OTHER].insert_many([{"_id": n, "a": n % 4, "k": 100 + n} for n in range(8)])
    yield database
    client.drop_database(database.name)


def answer(collection: Collection[Document], pipeline: list[Document]) -> object:
    """The results as a multiset, or the code of the error."""
    try:
        return sorted(bson.encode(_comparable(each)) for each in collection.aggregate(pipeline, batchSize=3))
    except OperationFailure as error:
        return error.code


def _comparable(document: Document) -> Document:
    """A document with joined documents in a definite order."""
    return {
        name: sorted(value, key=repr) if isinstance(value, list) and name in ("b", "d") else value
        for name, value in document.items()
    }


def fill(database: Database[Document], documents: list[Document]) -> None:
    """Give all collections the same documents, with unique ``k``."""
    rows: list[Any] = [{**each, "_id": number, "k": number} for number, each in enumerate(documents)]
    for name in (*SHARD_KEYS, "plain"):
        database[name].delete_many({})
        # A shard key field may not be an array.
        kept = [row for row in rows if not isinstance(row.get("a"), list)]
        if kept:
            database[name].insert_many(kept)


def check(database: Database[Document], documents: list[Document], tried: list[list[Document]]) -> None:
    """Compare the collections' answers to some pipelines."""
    fill(database, documents)
    for pipeline in tried:
        expected = answer(database["plain"], pipeline)
        for name in SHARD_KEYS:
            assert answer(database[name], pipeline) == expected, (name, pipeline)


@settings(max_examples=many(250, 13), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(documents=DOCUMENTS, first=pipelines(), second=pipelines(), third=pipelines())
def test_sharded_collections_answer_as_a_plain_one(
    stored: Database[Document],
    documents: list[Document],
    first: list[Document],
    second: list[Document],
    third: list[Document],
) -> None:
    check(stored, documents, [first, second, third])
