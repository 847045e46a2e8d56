"""Resharding of documents as large as documents can be, and of a collection with a collation of its own."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Final

import bson
from bson import MaxKey, MinKey
from bson.timestamp import Timestamp
from pymongo.collation import Collation

from tests.fail_points import fail_point
from tests.integration.sharded import Document, Documents, catalog_entry, placement
from tests.local_cluster import RunningCluster
from tests.resharding.resharded import LAST, resharding, split_parts

DOCUMENT_BYTES_MAX: Final = 16 << 20

IGNORES_CASE: Final = Collation(locale="en", strength=2)
SIMPLE: Final = Collation(locale="simple")

_numbers = count(1)


def largest(identity: int, text: str) -> Document:
    """A document to which not one byte could be added, on one shard before and on the other one afterwards."""
    document: Document = {"_id": identity, "key": 0, "other": 0, "text": ""}
    room = DOCUMENT_BYTES_MAX - len(bson.encode(document))
    return {**document, "text": text * room}


@contextmanager
def resharded_meanwhile(collection: Documents, cluster: RunningCluster) -> Iterator[None]:
    """Reshard a collection by ``other``; the block takes place while documents are cloned."""
    with (
        cluster.direct("shard1.0.shardd") as upper,
        fail_point(upper, "reshardingPauseRecipientDuringCloning") as point,
    ):
        preset = {"_presetReshardedChunks": split_parts("other")}
        with resharding(collection.database.client, collection.full_name, {"other": 1}, **preset) as running:
            point.wait_entered()
            yield
            point.turn_off()
            assert running.wait() is None


def test_documents_of_the_maximum_size(collection: Documents, cluster: RunningCluster) -> None:
    """They are cloned, and what changes meanwhile is followed, one of them in each batch."""
    client = collection.database.client
    collection.insert_many([largest(0, "a"), largest(1, "a")])
    with resharded_meanwhile(collection, cluster):
        assert collection.replace_one({"_id": 1, "key": 0}, largest(1, "b")).modified_count == 1
        collection.insert_one(largest(2, "c"))
    assert placement(client, collection.full_name) == ["shard1", "shard0"]
    for identity, text in enumerate("abc"):
        found = collection.find_one({"_id": identity, "other": 0})
        assert found == largest(identity, text)
    assert collection.count_documents({}) == 3


def test_an_empty_timestamp_stays_as_it_is(collection: Documents, cluster: RunningCluster) -> None:
    """An update can set one, and one by a modifier keeps it, where mongod would fill it in for an insert."""
    empty = Timestamp(0, 0)
    collection.insert_one({"_id": 1, "key": 0, "other": 0})
    collection.update_one({"_id": 1, "key": 0}, [{"$set": {"time": {"$literal": empty}}}])
    with resharded_meanwhile(collection, cluster):
        for number in range(3):
            collection.update_one({"_id": 1, "key": 0}, {"$set": {"number": number}})
    assert collection.find_one({"_id": 1}) == {"_id": 1, "key": 0, "other": 0, "time": empty, "number": 2}


def test_a_collation(cluster: RunningCluster) -> None:
    """Documents are placed by the simple collation, and found by the collection's own one, before and after."""
    with cluster.client(w="majority") as client:
        database = client[f"unusual_{next(_numbers)}"]
        client.admin.command("enableSharding", database.name, primaryShard="shard0")
        collection = database.create_collection("words", collation=IGNORES_CASE)
        collection.create_index("first", collation=SIMPLE)
        client.admin.command("shardCollection", collection.full_name, key={"first": 1}, collation={"locale": "simple"})
        words = ["a", "A", "b", "B", "z", "Z"]
        collection.insert_many({"first": number % LAST, "word": word} for number, word in enumerate(words))
        chunks = [
            {"recipientShardId": "shard0", "min": {"word": MinKey()}, "max": {"word": "a"}},
            {"recipientShardId": "shard1", "min": {"word": "a"}, "max": {"word": MaxKey()}},
        ]
        client.admin.command(
            "reshardCollection",
            collection.full_name,
            key={"word": 1},
            collation={"locale": "simple"},
            _presetReshardedChunks=chunks,
        )
        entry = catalog_entry(client, collection.full_name)
        assert entry is not None
        assert entry["key"] == {"word": 1}
        (shown,) = database.list_collections(filter={"name": "words"})
        assert (shown["options"]["collation"]["locale"], shown["options"]["collation"]["strength"]) == ("en", 2)
        for word in words:
            assert {each["word"] for each in collection.find({"word": word})} == {word.lower(), word.upper()}
            assert collection.find({"word": word}, collation=SIMPLE).distinct("word") == [word]
        with cluster.direct("shard0.0.mongod") as lower:
            assert sorted(lower[database.name].words.distinct("word", collation=SIMPLE)) == ["A", "B", "Z"]
        collection.insert_one({"first": 0, "word": "Q"})
        assert collection.update_one({"word": "Q"}, {"$set": {"seen": 1}}, collation=SIMPLE).modified_count == 1
        assert database.command("checkMetadataConsistency", 1, checkIndexes=True)["cursor"]["firstBatch"] == []
        client.drop_database(database.name)
