"""Reading oplog entries in the forms that mongod writes."""

from typing import Any
from uuid import UUID

import bson
import pytest
from bson.binary import Binary
from bson.timestamp import Timestamp

from shardwright.shardd.migration.donor.oplog_entries import EntryKind, WatchedCollection
from shardwright.sharding.chunks import ChunkRange
from shardwright.sharding.cluster_time import pack_timestamp
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import encode_document

Document = dict[str, Any]

UUID_HERE = UUID(int=7, version=4)
HERE = {"ns": "d.c", "ui": Binary.from_uuid(UUID_HERE)}
ELSEWHERE = {"ns": "d.x", "ui": Binary.from_uuid(UUID(int=8, version=4))}
NULL = {"ts": Timestamp(0, 0), "t": -1}
TIME = Timestamp(100, 5)


@pytest.fixture
def watched() -> WatchedCollection:
    pattern = ShardKeyPattern.from_mapping({"a": 1})
    wanted = ChunkRange.of(pattern, encode_document({"a": 0}), encode_document({"a": 10}))
    return WatchedCollection(Namespace("d", "c"), UUID_HERE, pattern, wanted, "from_to_1")


def entry(**fields: object) -> bytes:
    return bson.encode({**fields, "ts": TIME, "t": 1, "v": 2})


def identity(value: object) -> bytes:
    return encode_document({"_id": value})[4:-1]


INSERT: Document = {"op": "i", **HERE, "o": {"_id": 1, "a": 5}, "o2": {"_id": 1}}
INSERT_ABOVE: Document = {"op": "i", **HERE, "o": {"_id": 2, "a": 10}, "o2": {"_id": 2}}
INSERT_ELSEWHERE: Document = {"op": "i", **ELSEWHERE, "o": {"_id": 3, "a": 5}, "o2": {"_id": 3}}
UPDATE: Document = {"op": "u", **HERE, "o": {"$v": 2, "diff": {}}, "o2": {"_id": "x"}}
DELETE: Document = {"op": "d", **HERE, "o": {"_id": 4.0}}


@pytest.mark.parametrize(
    ("fields", "touched"),
    [
        (INSERT, [1]),
        (INSERT_ABOVE, []),
        (UPDATE, ["x"]),
        (DELETE, [4.0]),
        ({**INSERT, "o": {"a": 0, "_id": {"b": 1, "_id": 9}}}, [{"b": 1, "_id": 9}]),
    ],
)
def test_writes(watched: WatchedCollection, fields: Document, touched: list[object]) -> None:
    # A retryable write points back at the previous statement, which is not part of a chain.
    for previous in ({}, {"prevOpTime": NULL}, {"prevOpTime": {"ts": Timestamp(99, 1), "t": 1}}):
        read = watched.read(entry(**fields, **previous))
        assert read.kind is EntryKind.WRITE
        assert read.time == pack_timestamp(TIME)
        assert watched.touched_by(read) == [identity(value) for value in touched]


@pytest.mark.parametrize(
    "fields",
    [
        INSERT_ELSEWHERE,
        {**INSERT, "ui": ELSEWHERE["ui"]},
        {"op": "n", "ns": "", "o": {"msg": "periodic noop"}},
        {"op": "c", "ns": "d.$cmd", "ui": ELSEWHERE["ui"], "o": {"drop": "x"}},
        {"op": "c", "ns": "d.$cmd", "o": {"dropDatabase": 1}},
        {"op": "c", "ns": "admin.$cmd", "o": {"applyOps": [INSERT], "partialTxn": True}, "prevOpTime": NULL},
        {"op": "c", "ns": "admin.$cmd", "o": {"applyOps": [INSERT], "prepare": True}, "prevOpTime": NULL},
        {"op": "c", "ns": "admin.$cmd", "o": {"abortTransaction": 1}, "prevOpTime": {"ts": TIME, "t": 1}},
    ],
)
def test_entries_of_no_interest(watched: WatchedCollection, fields: Document) -> None:
    assert watched.read(entry(**fields)).kind is EntryKind.OTHER


def test_noops_of_the_collection(watched: WatchedCollection) -> None:
    assert watched.read(entry(op="n", **HERE, o={"msg": "retryable"})).kind is EntryKind.NOOP


@pytest.mark.parametrize("options", [{}, {"prevOpTime": NULL}, {"lsid": {}, "txnNumber": 1, "prevOpTime": NULL}])
def test_operations_in_one_entry(watched: WatchedCollection, options: Document) -> None:
    operations = [INSERT_ELSEWHERE, INSERT, DELETE, INSERT_ABOVE, UPDATE]
    read = watched.read(entry(op="c", ns="admin.$cmd", o={"applyOps": operations}, **options))
    assert read.kind is EntryKind.OPERATIONS
    assert watched.touched_by(read) == [identity(1), identity(4.0), identity("x")]


def test_the_end_of_a_chain(watched: WatchedCollection) -> None:
    previous = {"ts": Timestamp(90, 3), "t": 1}
    content = {"applyOps": [INSERT], "count": 3}
    read = watched.read(entry(op="c", ns="admin.$cmd", o=content, prevOpTime=previous))
    assert (read.kind, read.previous) == (EntryKind.COMMIT, pack_timestamp(Timestamp(90, 3)))
    assert watched.touched_by(read) == [identity(1)]


def test_the_commit_of_a_prepared_transaction(watched: WatchedCollection) -> None:
    previous = {"ts": Timestamp(90, 3), "t": 1}
    content = {"commitTransaction": 1, "commitTimestamp": Timestamp(90, 3)}
    read = watched.read(entry(op="c", ns="admin.$cmd", o=content, prevOpTime=previous))
    assert (read.kind, read.previous) == (EntryKind.COMMIT, pack_timestamp(Timestamp(90, 3)))
    assert watched.touched_by(read) == []


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"ui": HERE["ui"], "o": {"drop": "c"}}, ErrorCode.NamespaceNotFound),
        ({"ui": HERE["ui"], "o": {"renameCollection": "d.c", "to": "d.e"}}, ErrorCode.NamespaceNotFound),
        (
            {"ui": ELSEWHERE["ui"], "o": {"renameCollection": "d.x", "to": "d.c", "dropTarget": HERE["ui"]}},
            ErrorCode.NamespaceNotFound,
        ),
        ({"ui": HERE["ui"], "o": {"collMod": "c"}}, ErrorCode.Interrupted),
        ({"ui": HERE["ui"], "o": {"dropIndexes": "c", "index": "b_1"}}, ErrorCode.Interrupted),
        ({"ui": HERE["ui"], "o": {"startIndexBuild": "c"}}, ErrorCode.Interrupted),
    ],
)
def test_changes_of_the_collection_itself(watched: WatchedCollection, fields: Document, code: int) -> None:
    with pytest.raises(CommandError) as failure:
        watched.read(entry(op="c", ns="d.$cmd", **fields))
    assert failure.value.code == code


def test_an_index_created_in_a_transaction(watched: WatchedCollection) -> None:
    index = {"op": "c", "ns": "d.$cmd", "ui": HERE["ui"], "o": {"createIndexes": "c", "name": "x"}}
    read = watched.read(entry(op="c", ns="admin.$cmd", o={"applyOps": [index]}, prevOpTime=NULL))
    with pytest.raises(CommandError, match="createIndexes") as failure:
        watched.touched_by(read)
    assert failure.value.code == ErrorCode.Interrupted


def test_an_array_for_a_shard_key(watched: WatchedCollection) -> None:
    read = watched.read(entry(**{**INSERT, "o": {"_id": 1, "a": [1]}}))
    with pytest.raises(CommandError) as failure:
        watched.touched_by(read)
    assert failure.value.code == ErrorCode.ShardKeyNotFound
