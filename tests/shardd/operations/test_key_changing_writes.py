"""Updates that change shard keys, on real shards: allowed, refused and answered as MongoDB does."""

from typing import Any

import bson
import pytest
from bson import MaxKey
from pymongo.errors import AutoReconnect

from shardwright.wire.limits import BSON_OBJECT_BYTES_MAX
from tests.integration.raw_client import RawClient
from tests.shardd.mini_cluster import MiniCluster
from tests.shardd.router_stand_in import ShardedNamespace, transaction_numbers
from tests.shardd.session_history.history_writes import Session

NEARLY_16_MB = (16 << 20) - 1000


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
def test_a_retryable_write_may_change_a_key_within_the_shard(filled: ShardedNamespace, change: object) -> None:
    assert filled.retryable(update({"a": 11}, change)) == {"n": 1, "nModified": 1, "ok": 1.0}
    assert filled.documents() == [{"_id": 1, "a": 12, "b": 1}]


def test_an_update_with_varying_results_is_executed_as_previewed(filled: ShardedNamespace) -> None:
    """This shard owns the keys from 10 on, which half of the results of this update have."""
    anywhere = [{"$set": {"a": {"$multiply": [20, {"$rand": {}}]}}}]
    made = 0
    for _ in range(24):
        (document,) = filled.documents()
        made += filled.retryable(update({"a": document["a"]}, anywhere)).get("n", 0)  # 0: it would leave the shard
        (document,) = filled.documents()
        assert document["a"] >= 10
    assert made


@pytest.mark.parametrize("change", [{"$set": {"a": 12}}, {"a": 12}])
def test_other_writes_may_not(filled: ShardedNamespace, change: object) -> None:
    assert only_error(filled.versioned(update({"a": 11}, change)))["code"] == 20
    assert filled.documents() == [{"_id": 1, "a": 11, "b": 1}]


def test_the_same_value_is_not_a_change(filled: ShardedNamespace) -> None:
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
def test_changes_that_are_not_allowed(
    filled: ShardedNamespace, filter: dict[str, Any], change: object, fields: dict[str, Any], code: int
) -> None:
    reply = filled.retryable(update(filter, change, **fields))
    assert (reply if code == 283 else only_error(reply))["code"] == code
    assert filled.documents() == [{"_id": 1, "a": 11, "b": 1}]


def test_the_error_shows_a_document_that_would_leave_the_shard_before_and_after(filled: ShardedNamespace) -> None:
    """As the error of the whole command, like on genuine shards."""
    assert filled.retryable(update({"a": 11}, {"$set": {"a": 5}})) == {
        "ok": 0.0,
        "errmsg": "This update would cause the doc to change owning shards",
        "code": 283,
        "codeName": "WouldChangeOwningShard",
        "preImage": {"_id": 1, "a": 11, "b": 1},
        "postImage": {"_id": 1, "a": 5, "b": 1},
        "shouldUpsert": False,
    }


def test_the_error_shows_a_document_that_would_be_inserted_elsewhere(filled: ShardedNamespace) -> None:
    error = filled.retryable(update({"a": 99}, {"$set": {"_id": 9, "a": 5}}, upsert=True))
    assert (error["code"], error["postImage"], error["shouldUpsert"]) == (283, {"_id": 9, "a": 5}, True)


def test_an_upsert_that_stays_on_the_shard_is_executed(filled: ShardedNamespace) -> None:
    reply = filled.versioned(update({"a": 99}, {"$set": {"_id": 9, "a": 98}}, upsert=True))
    assert reply == {"n": 1, "upserted": [{"index": 0, "_id": 9}], "nModified": 0, "ok": 1.0}


def test_an_unset_key_is_null_which_is_below_all_numbers(filled: ShardedNamespace) -> None:
    assert filled.retryable(update({"a": 11}, {"$unset": {"a": 1}}))["nModified"] == 1
    assert filled.documents() == [{"_id": 1, "b": 1}]


def test_positional_operators_keep_their_meaning(filled: ShardedNamespace) -> None:
    filled.insert({"_id": 2, "a": 20, "list": [1, 2, 3]})
    change = {"$set": {"a": 21, "list.$": 9}}
    assert filled.retryable(update({"a": 20, "list": 2}, change))["nModified"] == 1
    assert filled.documents()[1] == {"_id": 2, "a": 21, "list": [1, 9, 3]}


def test_a_repeated_write_is_not_executed_twice(filled: ShardedNamespace) -> None:
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


@pytest.mark.parametrize("query", [{"a": 11}, {"a": 99}], ids=["update", "upsert"])
def test_a_find_and_modify_whose_transaction_number_has_another_statement(
    filled: ShardedNamespace, query: dict[str, Any]
) -> None:
    number = next(transaction_numbers)
    filled.retryable({"update": "c", "updates": [{"q": {"a": 11}, "u": {"$set": {"b": 2}}}]}, number=number)
    modify = {"findAndModify": "c", "query": query, "update": {"$set": {"a": 5}}, "upsert": True, "stmtId": 1}
    assert filled.retryable(modify, number=number)["code"] == 283
    assert filled.documents() == [{"_id": 1, "a": 11, "b": 2}]


TO_ANOTHER_SHARD: dict[str, Any] = {"$set": {"a": 5}}


@pytest.mark.parametrize("ending", ["aborted", "abandoned"])
@pytest.mark.parametrize(
    "command",
    [{"findAndModify": "c", "query": {"a": 11}, "update": TO_ANOTHER_SHARD}, update({"a": 11}, TO_ANOTHER_SHARD)],
    ids=["findAndModify", "update"],
)
def test_a_retry_after_an_attempt_that_was_not_committed(
    filled: ShardedNamespace, command: dict[str, Any], ending: str
) -> None:
    """mongod keeps an aborted prepared transaction, although it has executed nothing.

    An abandoned one keeps its lock on the document.
    """
    session = Session()
    transaction = session.child(1)
    attempt = {**update({"_id": 1}, {"$set": {"b": 2}}), **transaction, "startTransaction": True}
    member = filled.cluster.shards["sh0"].members[0]
    mongod, daemon = RawClient(member.mongod_plan.address), RawClient(member.address)
    with mongod.socket, daemon.socket:
        assert mongod.command(attempt, db=filled.db)["ok"]
        if ending == "aborted":
            prepare = {"prepareTransaction": 1, **transaction, "writeConcern": {"w": "majority"}}
            assert mongod.command(prepare)["ok"]
            assert mongod.command({"abortTransaction": 1, **transaction})["ok"]
        versioned = {**session.write(1, command), "shardVersion": filled.version()}
        assert daemon.command(versioned, db=filled.db)["code"] == 283
    assert filled.documents() == [{"_id": 1, "a": 11, "b": 1}]


def large(**fields: object) -> dict[str, Any]:
    """A document that does not fit into a command twice."""
    document = {"_id": 2, "a": 22, **fields, "b": b""}
    return {**document, "b": b"x" * (BSON_OBJECT_BYTES_MAX - len(bson.encode(document)))}


def replaced(**fields: object) -> list[dict[str, Any]]:
    """A pipeline that makes a `large` document of it."""
    return [{"$replaceWith": {"$mergeObjects": ["$$ROOT", {"$literal": fields}]}}]


def second(sharded: ShardedNamespace) -> dict[str, Any]:
    """The document that was inserted as a `large` one."""
    (document,) = sharded.versioned({"find": "c", "filter": {"_id": 2}})["cursor"]["firstBatch"]
    return dict(document)


LARGER = [{"$replaceWith": {"$literal": {"_id": 2, "a": 22, "b": b"y" * NEARLY_16_MB}}}]


@pytest.fixture
def with_large(filled: ShardedNamespace) -> ShardedNamespace:
    """The ranged collection with a second document, of 16 MB."""
    filled.insert(large(c=1))
    return filled


def test_a_document_that_does_not_fit_into_a_command_together_with_its_update(with_large: ShardedNamespace) -> None:
    """Before and after are 16 MB each, and so is the update."""
    updates = [{"q": {"a": 22}, "u": LARGER}, {"q": {"a": 11}, "u": {"$inc": {"b": 1}}}]
    reply = with_large.versioned({"update": "c", "updates": updates, "ordered": False})
    assert reply == {"n": 2, "nModified": 2, "ok": 1.0}
    reply = with_large.versioned({"findAndModify": "c", "query": {"a": 22}, "update": replaced(c=2), "new": True})
    after = {"_id": 2, "a": 22, "b": b"y" * NEARLY_16_MB, "c": 2}
    assert reply == {"lastErrorObject": {"n": 1, "updatedExisting": True}, "value": after, "ok": 1.0}
    assert second(with_large) == after


def test_all_documents_that_match_some_of_them_large(with_large: ShardedNamespace) -> None:
    reply = with_large.versioned(update({}, replaced(c=2), multi=True))
    assert reply == {"n": 2, "nModified": 2, "ok": 1.0}
    assert second(with_large) == large(c=2)


def test_a_large_document_is_updated_once_by_a_retryable_write(with_large: ShardedNamespace) -> None:
    """With a new shard key, which makes it a statement whose history has to be found by the former one."""
    changing = [*replaced(a=23), {"$set": {"c": {"$add": ["$c", 1]}}}]
    number = next(transaction_numbers)
    reply = with_large.retryable(update({"a": 22}, changing), number=number)
    assert reply == {"n": 1, "nModified": 1, "ok": 1.0}
    again = with_large.retryable(update({"a": 22}, changing), number=number)
    assert again == {"n": 1, "nModified": 1, "retriedStmtIds": [0], "ok": 1.0}
    number = next(transaction_numbers)
    modify = {"findAndModify": "c", "query": {"a": 23}, "update": changing}
    reply = with_large.retryable(modify, number=number)
    assert reply == {"lastErrorObject": {"n": 1, "updatedExisting": True}, "value": large(a=23, c=2), "ok": 1.0}
    assert with_large.retryable(modify, number=number) == {**reply, "retriedStmtId": 0}
    assert second(with_large) == large(a=23, c=3)


def test_a_lost_commit_of_the_update_of_a_large_document_blocks_no_others(
    mini: MiniCluster, with_large: ShardedNamespace
) -> None:
    lost = {"failCommands": ["commitTransaction"], "closeConnection": True}
    with mini.shards["sh0"].members[0].mongod_client() as mongod:
        mongod.admin.command("configureFailPoint", "failCommand", mode={"times": 1}, data=lost)
        with pytest.raises(AutoReconnect):
            with_large.versioned(update({"a": 22}, replaced(c=2)))
    reply = with_large.versioned({**update({"_id": 2, "a": 22}, {"$set": {"c": 3}}), "maxTimeMS": 20_000})
    assert reply == {"n": 1, "nModified": 1, "ok": 1.0}


def test_a_large_document_may_not_change_its_key_without_a_number(with_large: ShardedNamespace) -> None:
    reply = with_large.versioned(update({"a": 22}, replaced(a=23)))
    assert only_error(reply)["code"] == 20
    assert second(with_large) == large(c=1)


@pytest.mark.parametrize("is_retryable", [True, False])
def test_a_large_document_whose_update_has_varying_results(with_large: ShardedNamespace, is_retryable: bool) -> None:
    """The checked values are written, not the preview's. This shard owns the keys from 10 on."""
    anywhere = [{"$set": {"a": {"$toInt": {"$multiply": [40, {"$rand": {}}]}}}}]
    made, run = 0, with_large.retryable if is_retryable else with_large.versioned
    for _ in range(8 if is_retryable else 2):
        before = second(with_large)
        reply = run(update({"a": before["a"]}, anywhere))
        made += reply.get("n", 0)
        after = second(with_large)
        assert after["a"] >= 10
        assert is_retryable or after["a"] == before["a"]
        assert reply.get("n") or after == before
    assert bool(made) == is_retryable


def test_an_upsert_that_does_not_fit_into_a_command_together_with_its_variables(filled: ShardedNamespace) -> None:
    half = b"z" * (NEARLY_16_MB // 2)
    upsert = {
        **{"findAndModify": "c", "query": {"_id": 3, "a": 33}, "upsert": True, "new": True, "let": {"half": half}},
        "update": [{"$set": {"b": "$$half", "c": [{"$literal": b"1"}, {"$substrBytes": ["x" * 9000, 0, -1]}]}}],
    }
    for run in (filled.versioned, filled.retryable):
        reply = run(upsert)
        assert (reply["ok"], len(reply["value"]["b"])) == (1.0, len(half)), reply
        filled.versioned({"delete": "c", "deletes": [{"q": {"_id": 3}, "limit": 1}]})


def test_mongod_refuses_to_remove_and_update(filled: ShardedNamespace) -> None:
    both = {"findAndModify": "c", "query": {"a": 11}, "update": {"$set": {"a": 12}}, "remove": True}
    for reply in (filled.versioned(both), filled.retryable(both)):
        assert (reply["code"], reply["errmsg"]) == (9, "Cannot specify both an update and remove=true")
    assert filled.documents() == [{"_id": 1, "a": 11, "b": 1}]


def test_indexes_of_a_sharded_collection(filled: ShardedNamespace) -> None:
    unique = {"createIndexes": "c", "indexes": [{"key": {"b": 1}, "name": "b", "unique": True}]}
    assert filled.versioned(unique)["code"] == 67
    assert filled.versioned({"dropIndexes": "c", "index": "a_1"})["codeName"] == "CannotDropShardKeyIndex"
    filled.versioned({"createIndexes": "c", "indexes": [{"key": {"b": 1}, "name": "b"}]})
    dropped = filled.versioned({"dropIndexes": "c", "index": "*"})
    message = "non-_id indexes and non-shard key indexes dropped for collection"
    assert dropped == {"nIndexesWas": 3, "msg": message, "ok": 1.0}
    indexes = filled.versioned({"listIndexes": "c"})["cursor"]["firstBatch"]
    assert [index["name"] for index in indexes] == ["_id_", "a_1"]


@pytest.fixture
def collated(mini: MiniCluster, db: str) -> ShardedNamespace:
    """A collection sharded by ``k`` with ``k: 'A'`` on ``sh0`` and ``k: 'a'`` on ``sh1``."""
    sharded = ShardedNamespace(mini, f"{db}.c", {"k": 1}, "sh0")
    sharded.split([{"k": "a"}])
    sharded.move({"k": "a"}, {"k": MaxKey()}, "sh1")
    assert sharded.run({"cleanupOrphaned": sharded.namespace}, db="admin")["ok"]
    sharded.insert({"_id": 1, "k": "A"}, {"_id": "x", "k": "B"})
    return sharded


def insensitive(query: dict[str, Any], change: object, **fields: object) -> dict[str, Any]:
    """An update whose collation considers ``A`` and ``a`` equal."""
    return update(query, change, collation={"locale": "en", "strength": 2}, **fields)


@pytest.mark.parametrize("change", [{"$set": {"k": "a"}}, [{"$set": {"k": "a"}}]])
def test_under_a_collation_keys_stay_on_their_shard(collated: ShardedNamespace, change: object) -> None:
    many = only_error(collated.versioned(insensitive({"k": "a"}, change, multi=True)))
    assert many["code"] == 72
    assert collated.retryable(insensitive({"k": "a"}, change))["code"] == 283
    assert [each["k"] for each in collated.documents()] == ["A", "B"]


def test_under_a_collation_documents_whose_key_stays_are_updated(collated: ShardedNamespace) -> None:
    collated.insert({"_id": 2, "k": "A"}, {"_id": "X", "k": "B"})
    both = insensitive({"k": "a"}, {"$set": {"k": "A", "n": 1}}, multi=True)
    assert collated.versioned(both) == {"n": 2, "nModified": 2, "ok": 1.0}
    one = insensitive({"k": "b", "_id": {"$type": "string"}}, [{"$set": {"k": "$k", "i": "$_id"}}], multi=True)
    assert collated.versioned(one) == {"n": 2, "nModified": 2, "ok": 1.0}
    assert {(each["_id"], each["i"]) for each in collated.documents() if "i" in each} == {("x", "x"), ("X", "X")}


def test_many_documents_keep_their_keys_in_a_pipeline_that_could_change_them(filled: ShardedNamespace) -> None:
    filled.insert({"_id": 2, "a": 12, "b": 1})
    marked = [{"$replaceWith": {"$mergeObjects": ["$$ROOT", {"m": 1}]}}]
    assert filled.versioned(update({}, marked, multi=True)) == {"n": 2, "nModified": 2, "ok": 1.0}
    assert filled.versioned(update({"a": {"$gt": 50}}, marked, multi=True)) == {"n": 0, "nModified": 0, "ok": 1.0}
    shifted = [{"$replaceWith": {"_id": "$_id", "a": {"$add": ["$a", 1]}}}]
    assert only_error(filled.versioned(update({}, shifted, multi=True)))["code"] == 31025
    assert [(each["a"], each["m"]) for each in filled.documents()] == [(11, 1), (12, 1)]


def test_the_reply_to_updates_refused_by_the_preview_has_the_times(filled: ShardedNamespace) -> None:
    client = filled.cluster.kept_client(filled.cluster.shards["sh0"].members[0])
    refused = update({"a": 11}, {"$set": {"a": 12}})
    reply = client[filled.db].command({**refused, "shardVersion": filled.version("sh0")})
    assert only_error(reply)["code"] == 20
    assert reply["$clusterTime"]["clusterTime"] >= reply["operationTime"]
