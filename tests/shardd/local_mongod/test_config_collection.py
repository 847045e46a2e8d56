"""The documents of one collection of ``config``, on a real mongod."""

from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.shardd.local_mongod.local_collections import ConfigCollection
from tests.shardd.lone_mongod import LoneMongod


def test_documents_are_saved_and_removed_by_their_id(lone: LoneMongod) -> None:
    async def check(mongod: LocalMongod) -> None:
        documents = ConfigCollection(mongod, "byId")
        assert await documents.get({"a": 1}) is None
        await documents.save({"_id": {"a": 1}, "phase": "one", "more": True})
        await documents.save({"_id": {"a": 2}, "phase": "one"})
        await documents.save({"_id": {"a": 1}, "phase": "two"})
        assert await documents.get({"a": 1}) == {"_id": {"a": 1}, "phase": "two"}
        await documents.remove({"a": 1})
        await documents.remove({"a": 1})
        assert await documents.all() == [{"_id": {"a": 2}, "phase": "one"}]

    lone.run(check)


def test_all_documents_may_be_more_than_a_batch(lone: LoneMongod) -> None:
    async def check(mongod: LocalMongod) -> None:
        inserted = [{"_id": number} for number in range(250)]
        await mongod.write("config", {"insert": "many", "documents": inserted})
        documents = ConfigCollection(mongod, "many")
        assert await documents.all() == await documents.all(may_be_secondary=True) == inserted
        assert await ConfigCollection(mongod, "none").all() == []

    lone.run(check)
