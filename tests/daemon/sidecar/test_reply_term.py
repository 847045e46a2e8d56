"""Reading the term from a mongod's reply, and the reply without it."""

from typing import Any

import bson
import pytest

from shardwright.daemon.sidecar.mongod import REPLICATION_DATA
from shardwright.daemon.sidecar.reply_term import ASK_FOR_TERM, take_term
from shardwright.wire.message import OpMsg, op_msg, with_checksum
from shardwright.wire.rawbson import OBJECT, append, element
from tests.shardd.mini_cluster import Member

METADATA = {"term": bson.Int64(7), "isPrimary": True}
TIMES = {"$clusterTime": {"clusterTime": bson.Timestamp(1, 2)}, "operationTime": bson.Timestamp(1, 2)}


def frame_of(document: dict[str, Any]) -> bytes:
    return op_msg(bson.encode(document), request_id=3, response_to=4)


@pytest.mark.parametrize("before", [{"n": 1, "ok": 1.0}, {"value": {"text": "x" * 100_000}, "ok": 1.0}, {"ok": 0.0}])
@pytest.mark.parametrize("after", [{}, TIMES])
def test_the_term_is_read_and_stripped(before: dict[str, Any], after: dict[str, Any]) -> None:
    assert take_term(frame_of({**before, REPLICATION_DATA: METADATA, **after})) == (frame_of({**before, **after}), 7)


def test_a_reply_without_a_term_is_unchanged() -> None:
    frame = frame_of({"ok": 0.0, **TIMES})
    assert take_term(frame) == (frame, None)


def test_a_value_that_looks_like_a_term_is_ignored() -> None:
    frame = frame_of({"value": {REPLICATION_DATA: {"term": 1}}, "ok": 1.0})
    assert take_term(frame) == (frame, None)


def test_a_value_that_looks_like_a_term_stays_in_the_reply() -> None:
    value = {"value": {REPLICATION_DATA: METADATA}}
    assert take_term(frame_of({**value, REPLICATION_DATA: {"term": bson.Int64(9)}})) == (frame_of(value), 9)


QUOTED = "x\0" + element(REPLICATION_DATA.encode(), OBJECT, bson.encode(METADATA)).decode() + "x"


def test_an_error_that_quotes_what_looks_like_a_term() -> None:
    frame = frame_of({"ok": 0.0, "errmsg": QUOTED, **TIMES})
    assert take_term(frame) == (frame, None)


def test_a_reply_with_a_checksum() -> None:
    reply, term = take_term(with_checksum(frame_of({"n": 1, REPLICATION_DATA: METADATA})))
    assert (OpMsg(reply).body, term) == (bson.encode({"n": 1}), 7)


def test_mongod_reports_its_term_in_every_reply(member: Member) -> None:
    body = append(bson.encode({"ping": 1, "$db": "admin"}), ASK_FOR_TERM)
    with member.mongod_client() as client:
        term = client.admin.command("replSetGetStatus")["term"]
        told = client.admin.command(bson.decode(body) | {"$db": "admin"})
    assert told[REPLICATION_DATA]["term"] == term
