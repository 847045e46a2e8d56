"""The daemon's estimate of a collection's growth."""

from collections.abc import Mapping
from typing import Any

import bson
import pytest

from shardwright.shardd.splitting.growth import WrittenKeys, grown_bytes
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.wire.message import OpMsg, encode_sequence, op_msg, reply_document
from shardwright.wire.request import Request

KEY = ShardKeyPattern.from_mapping({"k": 1})
BIG = "x" * 1000


def request(command: Mapping[str, Any], sequence: tuple[str, list[dict[str, Any]]] | None = None) -> Request:
    sections = b""
    if sequence is not None:
        name, documents = sequence
        sections = encode_sequence(name.encode(), [bson.encode(each) for each in documents])
    return Request(OpMsg(op_msg(bson.encode({**command, "$db": "d"}), request_id=1, sections=sections)))


def answer(**fields: object) -> bytes:
    return reply_document(1, {**fields, "ok": 1.0})


DOCUMENTS = [{"k": number, "v": BIG} for number in range(4)]
SIZE = sum(len(bson.encode(each)) for each in DOCUMENTS)


def test_inserts_count_with_their_documents() -> None:
    assert grown_bytes(request({"insert": "c"}, ("documents", DOCUMENTS)), answer(n=4)) == SIZE
    assert grown_bytes(request({"insert": "c"}, ("documents", DOCUMENTS)), None) == SIZE
    in_body = grown_bytes(request({"insert": "c", "documents": DOCUMENTS}), answer(n=4))
    assert SIZE <= in_body < SIZE + 50


@pytest.mark.parametrize(
    ("reply", "times"),
    [
        ({"n": 1, "nModified": 1}, 1),
        ({"n": 1, "nModified": 0}, 0),
        ({"n": 1, "upserted": [{"index": 0, "_id": 7}], "nModified": 0}, 1),
        ({"n": 1, "upserted": [{"index": 0, "_id": {"nModified": 1000}}], "nModified": 0}, 1),
        ({"n": 0, "writeErrors": [{"index": 0, "keyValue": {"nModified": 9, "upserted": []}}], "nModified": 0}, 0),
        ({"n": 50, "nModified": 50}, 50),
    ],
)
def test_an_update_counts_once_for_each_document_that_it_changes(reply: dict[str, Any], times: int) -> None:
    statement = {"q": {"k": 1}, "u": {"$set": {"v": BIG}}, "multi": True}
    size = len(bson.encode(statement))
    assert grown_bytes(request({"update": "c"}, ("updates", [statement])), answer(**reply)) == times * size


def test_many_statements_count_as_what_they_change_on_average() -> None:
    statements = [{"q": {"k": number}, "u": {"$set": {"v": BIG}}} for number in range(10, 20)]
    size = sum(len(bson.encode(each)) for each in statements)
    assert grown_bytes(request({"update": "c"}, ("updates", statements)), answer(n=10, nModified=10)) == size
    assert grown_bytes(request({"update": "c"}, ("updates", statements)), answer(n=5, nModified=5)) == size // 2


@pytest.mark.parametrize(
    "command",
    [{"delete": "c", "deletes": [{"q": {}, "limit": 0}]}, {"createIndexes": "c", "indexes": []}, {"drop": "c"}],
)
def test_nothing_else_counts(command: dict[str, Any]) -> None:
    assert grown_bytes(request(command), answer(n=1)) == 0


def test_the_removal_of_find_and_modify_does_not_count() -> None:
    assert grown_bytes(request({"findAndModify": "c", "query": {"k": 1}, "remove": True}), answer()) == 0
    assert grown_bytes(request({"findAndModify": "c", "query": {"k": 1}, "update": {"v": BIG}}), answer()) > 1000


@pytest.mark.parametrize(("position", "key"), [(0.0, 0), (0.3, 1), (0.6, 2), (0.999, 3)])
def test_the_key_at_a_position(position: float, key: int) -> None:
    expected = KEY.key_bytes(bson.encode({"k": key}))
    assert WrittenKeys(request({"insert": "c"}, ("documents", DOCUMENTS)), KEY).at(position) == expected
    statements = [{"q": {"k": number}, "u": {"$set": {"v": BIG}}} for number in range(4)]
    assert WrittenKeys(request({"update": "c"}, ("updates", statements)), KEY).at(position) == expected


@pytest.mark.parametrize("query", [{}, {"k": {"$gt": 1}}, {"_id": 1}, {"$or": [{"k": 1}, {"k": 2}]}])
def test_updates_that_do_not_fix_the_key(query: dict[str, Any]) -> None:
    statements = [{"q": query, "u": {"$set": {"v": 1}}, "multi": True}]
    assert WrittenKeys(request({"update": "c"}, ("updates", statements)), KEY).at(0.5) is None
    assert WrittenKeys(request({"findAndModify": "c", "query": query, "update": {"a": 1}}), KEY).at(0.5) is None


def test_what_mongod_refuses_has_no_key() -> None:
    assert WrittenKeys(request({"insert": "c"}, ("documents", [{"k": [1, 2]}])), KEY).at(0.5) is None
    assert WrittenKeys(request({"update": "c"}, ("updates", [{"u": {"$set": {"v": 1}}}])), KEY).at(0.5) is None


def test_a_request_is_taken_apart_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one with 48 MB, there are thousands of samples."""
    calls: list[bytes] = []
    documents = Request.documents

    def counted(self: Request, name: bytes) -> list[bytes]:
        calls.append(name)
        return documents(self, name)

    monkeypatch.setattr(Request, "documents", counted)
    keys = WrittenKeys(request({"insert": "c", "documents": DOCUMENTS}), KEY)
    assert {keys.at(number / 1000) for number in range(1000)} == {
        KEY.key_bytes(bson.encode({"k": k})) for k in range(4)
    }
    assert len(calls) == 1
