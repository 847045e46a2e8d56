"""The same session of reads and writes with the asyncio clients: pymongo's own, and motor."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from motor.motor_asyncio import AsyncIOMotorClient
from pymongo import AsyncMongoClient, InsertOne, UpdateOne
from pymongo.errors import BulkWriteError

from tests.integration.sharded import Documents
from tests.local_cluster import RunningCluster

AsyncSession = Callable[[Any], Awaitable[None]]


def run_with_pymongo(uri: str, database: str, session: AsyncSession) -> None:
    async def main() -> None:
        async with AsyncMongoClient[dict[str, Any]](uri) as client:
            await session(client[database])

    asyncio.run(main())


def run_with_motor(uri: str, database: str, session: AsyncSession) -> None:
    @contextmanager
    def connected() -> Iterator[Any]:
        client: Any = AsyncIOMotorClient(uri)
        try:
            yield client
        finally:
            client.close()

    async def main() -> None:
        with connected() as client:
            await session(client[database])

    asyncio.run(main())


async def read_and_write(name: str, database: Any) -> None:  # noqa: ANN401 - a database of either client
    collection = database[name]
    await collection.insert_many([{"_id": n, "key": n, "group": n % 10} for n in range(1000)])
    assert await collection.find_one({"key": 700}) == {"_id": 700, "key": 700, "group": 0}
    found = collection.find({"key": {"$gte": 400}}).sort("key", -1).skip(100).limit(300).batch_size(50)
    assert [document["key"] async for document in found] == list(range(899, 599, -1))
    assert await collection.count_documents({"group": 3}) == 100
    assert sorted(await collection.distinct("group")) == list(range(10))

    updated = await collection.update_many({"group": 1}, {"$set": {"group": -1}})
    assert updated.modified_count == 100
    changed = await collection.find_one_and_update({"_id": 501, "key": 501}, {"$set": {"seen": True}})
    assert changed["group"] == -1
    assert (await collection.delete_many({"group": -1})).deleted_count == 100

    with pytest.raises(BulkWriteError) as caught:
        await collection.bulk_write(
            [
                InsertOne({"_id": "new", "key": 2000}),
                InsertOne({"_id": 0, "key": 0}),
                UpdateOne({"_id": 600, "key": 600}, {"$set": {"seen": True}}),
            ],
            ordered=False,
        )
    assert caught.value.details["nInserted"] == 1
    assert caught.value.details["nModified"] == 1
    assert [error["index"] for error in caught.value.details["writeErrors"]] == [1]
    # Many concurrent operations, each on its own connection.
    read = await asyncio.gather(*(collection.find_one({"key": n}) for n in range(0, 1000, 10)))
    assert [document["key"] for document in read] == list(range(0, 1000, 10))


@pytest.mark.parametrize("run", [run_with_pymongo, run_with_motor])
def test_session(cluster: RunningCluster, collection: Documents, run: Callable[[str, str, AsyncSession], None]) -> None:
    run(cluster.client_uri(), collection.database.name, lambda database: read_and_write(collection.name, database))


@pytest.mark.parametrize("run", [run_with_pymongo, run_with_motor])
def test_collections_of_a_database(
    cluster: RunningCluster, placed: Documents, run: Callable[[str, str, AsyncSession], None]
) -> None:
    """Collections created by one client exist for another."""

    async def names(database: Any) -> None:  # noqa: ANN401 - a database of either client
        assert await database.list_collection_names() == [placed.name]

    run(cluster.client_uri(), placed.database.name, names)
