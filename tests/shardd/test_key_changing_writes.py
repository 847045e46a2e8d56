"""Updates that change shard keys, on real shards: allowed, refused and answered as MongoDB does."""

from typing import Any

import pytest

from tests.shardd.router_stand_in import ShardedNamespace, transaction_numbers


@pytest.fixture
def filled(ranged: ShardedNamespace) -> ShardedNamespace:
    """The ranged collection with a document that ``sh0`` owns."""
    ranged.insert({"_id": 1, "a": 11, "b": 1})
    return ranged


def update(filter: dict[str, Any], change: Any, **fields: Any) -> dict[str, Any]:  # noqa: ANN401 - as in a command
    return {"update": "c", "updates": [{"q": filter, "u": change, **fields}]}


def only_error(reply: dict[str, Any]) -> dict[str, Any]:
    assert reply["ok"] == 1.0
    (error,) = reply["writeErrors"]
    return dict(error)


@pytest.mark.parametrize("change", [{"$set": {"a": 12}}, {"a": 12, "b": 1}, [{"$set": {"a": 12}}], {"$inc": {"a": 1}}])
def test_within_the_shard_a_retryable_write_may(filled: ShardedNamespace, change: object) -> None:
    assert filled.retryable(update({"a": 11}, change)) == {"n": 1, "nModified": 1, "ok": 1.0}
    assert filled.documents() == [{"_id": 1, "a": 12, "b": 1}]


@pytest.mark.parametrize("change", [{"$set": {"a": 12}}, {"a": 12}])
def test_another_write_may_not(filled: ShardedNamespace, change: object) -> None:
    assert only_error(filled.versioned(update({"a": 11}, change)))["code"] == 20
    assert filled.documents() == [{"_id": 1, "a": 11, "b": 1}]


def test_the_same_value_is_no_change(filled: ShardedNamespace) -> None:
    reply = filled.versioned(update({"_id": 1}, {"$set": {"a": 11, "b": 2}}))
    assert reply == {"n": 1, "nModified": 1, "ok": 1.0}


@pytest.mark.parametrize(
    ("filter", "change", "fields", "code"),
    [
        ({"_id": 1}, {"$set": {"a": 12}}, {}, 31025),
        ({"a": {"$gt": 10}}, {"$set": {"a": 12}}, {}, 31025),
        ({"a": 11}, {"$set": {"a": [12]}}, {}, 54),
        ({"a": 11}, {"$inc": {"a": 1}}, {"multi": True}, 72),
        ({"a": 11}, {"$set": {"a": 5}}, {}, 283),
        ({"a": 11}, {"$set": {"_id": 2}}, {}, 66),
    ],
)
def test_what_may_not_be(
    filled: ShardedNamespace, filter: dict[str, Any], change: object, fields: dict[str, Any], code: int
) -> None:
    assert only_error(filled.retryable(update(filter, change, **fields)))["code"] == code
    assert filled.documents() == [{"_id": 1, "a": 11, "b": 1}]


def test_a_document_that_would_leave_the_shard_is_shown_before_and_after(filled: ShardedNamespace) -> None:
    error = only_error(filled.retryable(update({"a": 11}, {"$set": {"a": 5}})))
    assert error == {
        "index": 0,
        "code": 283,
        "errmsg": "This update would cause the doc to change owning shards",
        "preImage": {"_id": 1, "a": 11, "b": 1},
        "postImage": {"_id": 1, "a": 5, "b": 1},
        "shouldUpsert": False,
    }


def test_so_is_one_that_would_be_inserted_elsewhere(filled: ShardedNamespace) -> None:
    error = only_error(filled.retryable(update({"a": 99}, {"$set": {"_id": 9, "a": 5}}, upsert=True)))
    assert (error["code"], error["postImage"], error["shouldUpsert"]) == (283, {"_id": 9, "a": 5}, True)


def test_an_upsert_that_stays_is_made(filled: ShardedNamespace) -> None:
    reply = filled.versioned(update({"a": 99}, {"$set": {"_id": 9, "a": 98}}, upsert=True))
    assert reply == {"n": 1, "upserted": [{"index": 0, "_id": 9}], "nModified": 0, "ok": 1.0}


def test_unset_is_null_which_is_below_all_numbers(filled: ShardedNamespace) -> None:
    assert filled.retryable(update({"a": 11}, {"$unset": {"a": 1}}))["nModified"] == 1
    assert filled.documents() == [{"_id": 1, "b": 1}]


def test_positional_operators_keep_their_meaning(filled: ShardedNamespace) -> None:
    filled.insert({"_id": 2, "a": 20, "list": [1, 2, 3]})
    change = {"$set": {"a": 21, "list.$": 9}}
    assert filled.retryable(update({"a": 20, "list": 2}, change))["nModified"] == 1
    assert filled.documents()[1] == {"_id": 2, "a": 21, "list": [1, 9, 3]}


def test_a_repeated_write_is_not_made_twice(filled: ShardedNamespace) -> None:
    command = {**update({"a": 11}, {"$inc": {"a": 1}}), "stmtIds": [4]}
    number = next(transaction_numbers)
    filled.retryable(command, number=number)
    again = filled.retryable(command, number=number)
    assert (again["n"], again["retriedStmtIds"]) == (1, [4])
    assert filled.documents() == [{"_id": 1, "a": 12, "b": 1}]


@pytest.mark.parametrize(("ordered", "n", "b"), [(True, 1, 2), (False, 2, 3)])
def test_one_of_a_batch_fails(filled: ShardedNamespace, ordered: bool, n: int, b: int) -> None:
    updates = [
        {"q": {"a": 11}, "u": {"$set": {"b": 2}}},
        {"q": {"a": 11}, "u": {"$set": {"a": 5}}},
        {"q": {"a": 11}, "u": {"$inc": {"b": 1}}},
    ]
    reply = filled.versioned({"update": "c", "updates": updates, "ordered": ordered})
    assert (reply["n"], [error["index"] for error in reply["writeErrors"]]) == (n, [1])
    assert filled.documents() == [{"_id": 1, "a": 11, "b": b}]


def test_find_and_modify(filled: ShardedNamespace) -> None:
    def modify(value: int) -> dict[str, Any]:
        return {"findAndModify": "c", "query": {"a": 11}, "update": {"$set": {"a": value}}, "new": True}

    assert filled.versioned(modify(12))["code"] == 20
    assert filled.retryable(modify(5))["code"] == 283
    assert filled.retryable(modify(12))["value"] == {"_id": 1, "a": 12, "b": 1}
    assert filled.retryable(modify(13))["value"] is None


def test_indexes_of_a_sharded_collection(filled: ShardedNamespace) -> None:
    unique = {"createIndexes": "c", "indexes": [{"key": {"b": 1}, "name": "b", "unique": True}]}
    assert filled.versioned(unique)["code"] == 67
    assert filled.versioned({"dropIndexes": "c", "index": "a_1"})["codeName"] == "CannotDropShardKeyIndex"
    filled.versioned({"createIndexes": "c", "indexes": [{"key": {"b": 1}, "name": "b"}]})
    assert filled.versioned({"dropIndexes": "c", "index": "*"}) == {"nIndexesWas": 3, "ok": 1.0}
    indexes = filled.versioned({"listIndexes": "c"})["cursor"]["firstBatch"]
    assert [index["name"] for index in indexes] == ["_id_", "a_1"]
