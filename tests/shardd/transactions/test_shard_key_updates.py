"""Updates of shard keys within transactions, which see what the transaction has written before."""

from typing import Any

import pytest

from tests.shardd.router_stand_in import ShardedNamespace
from tests.shardd.transactions.conftest import Begin

DOCUMENT: dict[str, Any] = {"_id": 1, "a": 11, "b": [1, 2]}
INSERT = {"insert": "c", "documents": [DOCUMENT]}


def update(modification: object, query: dict[str, Any] | None = None, **more: object) -> dict[str, Any]:
    """An update of the document's shard key."""
    return {"update": "c", "updates": [{"q": query or {"_id": 1, "a": 11}, "u": modification, **more}]}


def modify(modification: object, **more: object) -> dict[str, Any]:
    """A findAndModify of the document's shard key."""
    return {"findAndModify": "c", "query": {"_id": 1, "a": 11}, "update": modification, **more}


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize(
    ("statement", "after"),
    [
        (update({"$set": {"a": 12}}), {**DOCUMENT, "a": 12}),
        (update({"a": 12}), {"_id": 1, "a": 12}),
        (update([{"$set": {"a": {"$add": ["$a", 1]}}}]), {**DOCUMENT, "a": 12}),
        (update({"$inc": {"a": 1}, "$set": {"b.$": 7}}, {"a": 11, "b": 2}), {**DOCUMENT, "a": 12, "b": [1, 7]}),
        (modify({"$set": {"a": 12}}), {**DOCUMENT, "a": 12}),
        (modify({"$set": {"a": 12}}, new=True), {**DOCUMENT, "a": 12}),
    ],
)
def test_a_shard_key_changes_within_a_shard(
    ranged: ShardedNamespace, begin: Begin, statement: dict[str, Any], after: dict[str, Any], is_first: bool
) -> None:
    transaction = begin(concern={"level": "snapshot"})
    if is_first:
        ranged.insert(DOCUMENT)
    else:
        assert transaction.run(INSERT)["ok"]
    reply = transaction.run(statement)
    assert (reply["ok"], reply["readOnly"], reply.get("nModified", 1)) == (1.0, False, 1), reply
    if "value" in reply:
        assert reply["value"] == (after if statement.get("new") else DOCUMENT)
    assert transaction.run({"find": "c"})["cursor"]["firstBatch"] == [after]
    assert transaction.commit() == {"ok": 1.0}
    assert ranged.documents() == [after]


def test_an_upsert_here_that_sets_the_shard_key(ranged: ShardedNamespace, begin: Begin) -> None:
    transaction = begin()
    reply = transaction.run(update({"$set": {"a": 12}}, {"a": 11, "_id": 2}, upsert=True))
    assert (reply["n"], reply["upserted"], reply["readOnly"]) == (1, [{"index": 0, "_id": 2}], False), reply
    assert transaction.commit() == {"ok": 1.0}
    assert ranged.documents() == [{"_id": 2, "a": 12}]


@pytest.mark.parametrize(
    ("statement", "code"),
    [
        (update({"$set": {"a": 12}}, {"_id": 1}), 31025),
        (update({"$set": {"a": 12}}, multi=True), 72),
        (update({"$set": {"a": [1]}}), 54),
    ],
)
def test_what_is_not_allowed_aborts(
    ranged: ShardedNamespace, begin: Begin, statement: dict[str, Any], code: int
) -> None:
    transaction = begin()
    assert transaction.run(INSERT)["ok"]
    reply = transaction.run(statement)
    assert [each["code"] for each in reply["writeErrors"]] == [code]
    assert transaction.commit()["code"] == 251
    assert ranged.documents() == []


def test_a_multi_update_that_keeps_the_shard_key(ranged: ShardedNamespace, begin: Begin) -> None:
    transaction = begin()
    assert transaction.run(INSERT)["ok"]
    reply = transaction.run(update([{"$replaceWith": {"$mergeObjects": ["$$ROOT", {"c": 1}]}}], multi=True))
    assert (reply["n"], reply["nModified"]) == (1, 1), reply
    assert transaction.commit() == {"ok": 1.0}
    assert ranged.documents() == [{**DOCUMENT, "c": 1}]
