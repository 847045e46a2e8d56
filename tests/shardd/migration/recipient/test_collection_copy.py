"""The recipient creates the collection as it is on the donor, or refuses the migration."""

from typing import Any
from uuid import UUID, uuid4

import pytest
from bson import SON, Int64
from bson.binary import Binary

from tests.integration.waiting import eventually
from tests.shardd.migration.recipient.receiving import Receiving, documents, held

INDEXES = [
    {"v": 2, "key": {"a": 1}, "name": "a_1"},
    {"v": 2, "key": SON([("a", 1), ("b", -1)]), "name": "unique", "unique": True},
    {"v": 2, "key": {"b": 1.0}, "name": "sparse", "sparse": True},
    {"v": 2, "key": {"c": 1}, "name": "partial", "partialFilterExpression": {"c": {"$gt": 5}}},
    {"v": 2, "key": {"d": 1}, "name": "ttl", "expireAfterSeconds": Int64(3600)},
    {"v": 2, "key": {"e": 1}, "name": "hidden", "hidden": True},
    {"v": 2, "key": {"f": "hashed"}, "name": "hashed"},
    {
        "v": 2,
        "key": {"_fts": "text", "_ftsx": 1},
        "name": "text",
        "weights": {"t": 3},
        "default_language": "german",
        "language_override": "lang",
        "textIndexVersion": 3,
    },
    {"v": 2, "key": {"g": "2dsphere"}, "name": "sphere", "2dsphereIndexVersion": 3},
    {"v": 2, "key": {"h": "2d"}, "name": "flat", "bits": 20, "min": -10.0, "max": 10.0},
    {"v": 2, "key": {"$**": 1}, "name": "wildcard", "wildcardProjection": {"i": 1}},
    {
        "v": 2,
        "key": {"j": 1},
        "name": "collated",
        "collation": {
            "locale": "de",
            "caseLevel": False,
            "caseFirst": "off",
            "strength": 2,
            "numericOrdering": False,
            "alternate": "non-ignorable",
            "maxVariable": "punct",
            "normalization": False,
            "backwards": False,
            "version": "57.1",
        },
    },
]


def indexes_here(receiving: Receiving) -> list[dict[str, Any]]:
    with receiving.mongod() as client:
        listing = client[receiving.db].command({"listIndexes": "c"})
        return [each for each in listing["cursor"]["firstBatch"] if each["name"] != "_id_"]


def final_status(receiving: Receiving) -> dict[str, Any]:
    receiving.start()
    return receiving.wait_state("steady", "fail")


def test_indexes_of_all_kinds(receiving: Receiving) -> None:
    receiving.donor.indexes = INDEXES
    assert final_status(receiving)["state"] == "steady"
    assert indexes_here(receiving) == INDEXES
    for here, there in zip(indexes_here(receiving), INDEXES, strict=True):
        key = there["key"]
        assert isinstance(key, dict)
        assert list(here["key"].items()) == list(key.items())


def test_options_and_uuid(receiving: Receiving) -> None:
    receiving.donor.options = {
        "validator": {"a": {"$gte": 0}},
        "validationLevel": "moderate",
        "validationAction": "warn",
    }
    assert final_status(receiving)["state"] == "steady"
    with receiving.mongod() as client:
        (entry,) = client[receiving.db].list_collections(filter={"name": "c"})
    assert entry["options"] == receiving.donor.options
    assert UUID(bytes=bytes(entry["info"]["uuid"])) == receiving.donor.uuid


def test_a_collection_with_another_uuid_is_a_conflict(receiving: Receiving) -> None:
    with receiving.mongod() as client:
        client[receiving.db].c.insert_one({"a": -1})
    status = final_status(receiving)
    assert status["state"] == "fail"
    assert status["errmsg"].startswith("migrate failed: InvalidUUID: ")


def test_the_donor_has_another_collection_than_in_its_request(receiving: Receiving) -> None:
    assert receiving.start(collectionUUID=Binary.from_uuid(uuid4()))["ok"]
    assert "InvalidUUID" in receiving.wait_state("fail")["errmsg"]


@pytest.fixture
def existing(receiving: Receiving) -> Receiving:
    """The collection already exists, with an index on the shard key and a document of another range."""
    with receiving.mongod() as client:
        client[receiving.db].c.create_index("a")
        client[receiving.db].c.insert_one({"_id": "own", "a": -1})
    receiving.donor.uuid = receiving.uuid_here()
    return receiving


def test_a_missing_index_of_a_collection_with_documents_is_not_built(existing: Receiving) -> None:
    existing.donor.indexes = [*existing.donor.indexes, {"v": 2, "key": {"b": 1}, "name": "b_1"}]
    assert final_status(existing)["errmsg"] == (
        "migrate failed: CannotCreateCollection: aborting, shard is missing 1 indexes and collection is not empty. "
        "Non-trivial index creation should be scheduled manually"
    )
    assert [each["name"] for each in indexes_here(existing)] == ["a_1"]


def test_a_missing_index_of_an_empty_collection_is_built(existing: Receiving) -> None:
    with existing.mongod() as client:
        client[existing.db].c.delete_many({})
    existing.donor.indexes = [*existing.donor.indexes, {"v": 2, "key": {"b": 1}, "name": "b_1"}]
    assert final_status(existing)["state"] == "steady"
    assert [each["name"] for each in indexes_here(existing)] == ["a_1", "b_1"]


def test_documents_of_other_ranges_do_not_matter(existing: Receiving) -> None:
    existing.donor.documents = documents(10)
    assert final_status(existing)["state"] == "steady"
    assert len(existing.stored()) == 11


def test_the_collation_of_the_collection(receiving: Receiving) -> None:
    """The ids of a collection are compared under its collation; its shard key is not."""
    collation = {**INDEXES[-1]["collation"], "strength": 2}  # type: ignore[dict-item]
    donor = receiving.donor
    donor.options = {"collation": collation}
    donor.indexes = [{"v": 2, "key": {"a": 1}, "name": "a_1", "collation": {"locale": "simple"}}]
    donor.documents = [{"_id": "a", "a": 1}, {"_id": "b", "a": 2}]
    donor.modifications = [(["A"], [{"_id": "B", "a": 3}])]
    assert final_status(receiving)["state"] == "steady"
    assert receiving.stored() == [{"_id": "B", "a": 3}]


def test_changes_before_the_donor_follows_its_oplog_are_seen(receiving: Receiving) -> None:
    """From the first batch on, the donor aborts a migration when options or indexes change."""
    donor = receiving.donor
    with held(donor, "_migrateClone"):
        receiving.start()
        eventually(lambda: any("_migrateClone" in each for each in donor.commands), what="a batch is asked for")
        donor.options = {"validator": {"a": {"$gte": 0}}, "validationLevel": "strict", "validationAction": "error"}
        donor.indexes = [*donor.indexes, {"v": 2, "key": {"b": 1}, "name": "b_1"}]
    assert receiving.wait_state("steady", "fail")["state"] == "steady"
    assert options_here(receiving) == donor.options
    assert [each["name"] for each in indexes_here(receiving)] == ["a_1", "b_1"]


def test_options_are_aligned(existing: Receiving) -> None:
    with existing.mongod() as client:
        client[existing.db].command(
            "collMod", "c", validator={"old": 1}, changeStreamPreAndPostImages={"enabled": True}
        )
    existing.donor.options = {"validator": {"a": {"$gte": 0}}, "validationLevel": "moderate"}
    assert final_status(existing)["state"] == "steady"
    here = options_here(existing)
    assert here == {"validator": {"a": {"$gte": 0}}, "validationLevel": "moderate", "validationAction": "error"}


def test_options_that_cannot_be_changed_are_a_conflict(existing: Receiving) -> None:
    existing.donor.options = {"collation": {"locale": "de"}}
    assert final_status(existing)["errmsg"] == (
        f"migrate failed: InvalidOptions: the options collation of the collection {existing.namespace} are not those "
        "that it has on the donor"
    )


def options_here(receiving: Receiving) -> dict[str, Any]:
    with receiving.mongod() as client:
        (entry,) = client[receiving.db].list_collections(filter={"name": "c"})
        options: dict[str, Any] = entry["options"]
        return options
