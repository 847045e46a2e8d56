"""Indexes that cannot be built on every shard."""

import pytest
from pymongo.errors import OperationFailure

from shardwright.wire.error_codes import ErrorCode
from tests.integration.sharded import Document, Documents
from tests.local_cluster import Client


def names(mongod: Client, collection: Documents) -> set[str]:
    """The names of the indexes on one shard."""
    return set(mongod[collection.database.name][collection.name].index_information())


def refused(collection: Documents, *indexes: Document) -> Document:
    """The reply to a ``createIndexes`` that fails."""
    with pytest.raises(OperationFailure) as failure:
        collection.database.command({"createIndexes": collection.name, "indexes": list(indexes)})
    assert failure.value.details is not None
    return dict(failure.value.details)


def test_indexes_that_one_shard_could_not_build_are_on_none(
    placed: Documents, lower_mongod: Client, upper_mongod: Client
) -> None:
    placed.insert_many({"key": 600, "other": 1} for _ in range(2))
    placed.create_index("kept")
    before = names(lower_mongod, placed)
    unique = {"key": {"key": 1, "other": 1}, "name": "unique", "unique": True}
    kept = {"key": {"kept": 1}, "name": "kept_1"}
    reply = refused(placed, {"key": {"new": 1}, "name": "new"}, unique, kept)
    assert reply["code"] == ErrorCode.DuplicateKey
    assert len(reply["raw"]) == 2
    assert names(lower_mongod, placed) == names(upper_mongod, placed) == before
    placed.delete_one({"key": 600})
    placed.database.command({"createIndexes": placed.name, "indexes": [unique]})
    assert names(lower_mongod, placed) == names(upper_mongod, placed) == before | {"unique"}


def test_a_shard_with_a_different_index_of_that_name_is_asked_first(
    placed: Documents, lower_mongod: Client, upper_mongod: Client
) -> None:
    upper_mongod[placed.database.name][placed.name].create_index("other", name="mine")
    reply = refused(placed, {"key": {"something": 1}, "name": "mine"})
    assert reply["code"] == ErrorCode.IndexKeySpecsConflict
    assert len(reply["raw"]) == 1
    assert "mine" not in names(lower_mongod, placed)
