"""A collection of ten thousand chunks: created, read and written in order and by key, and moved."""

from pymongo.database import Database

from tests.integration.sharded import LOWER, UPPER, Document, chunks, shard_collection
from tests.local_cluster import Client

CHUNKS = 10_000
DOCUMENTS = 500


def test_ten_thousand_chunks(client: Client, other_client: Client, database: Database[Document]) -> None:
    shard_collection(database, "many", {"key": "hashed"}, numInitialChunks=CHUNKS)
    namespace = f"{database.name}.many"
    found = chunks(client, namespace)
    assert len(found) == CHUNKS
    assert {chunk["shard"] for chunk in found} == {LOWER, UPPER}

    database.many.insert_many({"_id": n, "key": n} for n in range(DOCUMENTS))
    other = other_client[database.name].many
    assert [document["_id"] for document in other.find(sort=[("_id", 1)], limit=100)] == list(range(100))
    assert list(other.aggregate([{"$group": {"_id": None, "sum": {"$sum": "$key"}}}])) == [
        {"_id": None, "sum": DOCUMENTS * (DOCUMENTS - 1) // 2}
    ]

    moved = found[0]
    to = UPPER if moved["shard"] == LOWER else LOWER
    client.admin.command("moveChunk", namespace, bounds=[moved["min"], moved["max"]], to=to, _waitForDelete=True)
    assert all(other.find_one({"key": n}) == {"_id": n, "key": n} for n in range(0, DOCUMENTS, 10))
    assert other.update_many({}, {"$inc": {"a": 1}}).modified_count == DOCUMENTS
    assert database.many.count_documents({"a": 1}) == DOCUMENTS
