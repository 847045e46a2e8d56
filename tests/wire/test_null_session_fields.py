"""A null in a session field of a request counts as its absence."""

import bson
import pytest

from shardwright.wire.message import OpMsg, op_msg
from shardwright.wire.request import Request

NAMES = ("lsid", "txnNumber", "autocommit", "startTransaction")
PING = {"ping": 1, "$db": "admin"}


def request(fields: dict[str, object], sections: bytes = b"") -> Request:
    return Request(OpMsg(op_msg(bson.encode(fields), request_id=7, sections=sections)))


@pytest.mark.parametrize("name", NAMES)
def test_one_is_removed(name: str) -> None:
    for _ in range(4):  # the layout may be known from the third one on
        found = request({**PING, name: None})
        assert bson.decode(found.body) == PING
        assert OpMsg(found.message.frame).body == found.body == found.message.body
        assert [*found.fields] == [b"ping", b"$db"]
        assert (found.name, found.db, found.message.request_id) == ("ping", "admin", 7)


def test_all_are_removed_and_others_are_kept() -> None:
    fields = {"ping": 1, "lsid": None, "comment": None, "txnNumber": None, "autocommit": None, "$db": "admin"}
    assert bson.decode(request({**fields, "startTransaction": None}).body) == PING | {"comment": None}


def test_values_stay() -> None:
    fields = {**PING, "txnNumber": bson.Int64(1), "autocommit": False}
    assert bson.decode(request({**fields, "lsid": None}).body) == fields


def test_document_sequences_stay() -> None:
    document = bson.encode({"_id": 1})
    payload = b"documents\0" + document
    section = b"\1" + (len(payload) + 4).to_bytes(4, "little") + payload
    found = request({"insert": "c", "lsid": None, "$db": "shop"}, section)
    assert b"lsid" not in found.fields
    assert found.documents(b"documents") == [document]
