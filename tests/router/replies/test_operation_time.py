"""The ``operationTime`` of replies merged from several shards."""

from typing import Any

import bson
import pytest
from bson.int64 import Int64
from bson.timestamp import Timestamp

from shardwright.router.replies.shard_reply import ShardReply, latest_operation_time
from shardwright.sharding.clock import VectorClock, VectorTime
from shardwright.sharding.cluster_time import pack_timestamp
from shardwright.wire.errors import CommandError
from shardwright.wire.message import op_msg

EARLIER, LATER, NEWEST = Timestamp(6, 9), Timestamp(7, 1), Timestamp(7, 3)
FORMS: dict[str, dict[str, Any]] = {
    "of a mongod": {"n": 1, "ok": 1.0},
    "of a genuine shard": {"n": 1, "ok": 1.0, "lastCommittedOpTime": EARLIER},
    "failed": {"ok": 0.0, "code": 8, "errmsg": "no"},
}


def reply_of(form: dict[str, Any], time: Timestamp) -> ShardReply:
    gossiped = {"clusterTime": time, "signature": {"hash": bytes(20), "keyId": Int64(0)}}
    document = {**form, "$clusterTime": gossiped, "operationTime": time}
    return ShardReply("north", "a:1", op_msg(bson.encode(document), request_id=2, response_to=1))


@pytest.fixture
def clock() -> VectorClock:
    return VectorClock(VectorTime(pack_timestamp(NEWEST)))


@pytest.mark.parametrize("form", FORMS)
def test_the_latest_of_several(form: str) -> None:
    replies = [reply_of(FORMS[form], EARLIER), reply_of(FORMS["of a mongod"], LATER), reply_of(FORMS[form], EARLIER)]
    unanswered = ShardReply.failed("south", CommandError(8, "no"))
    without_times = ShardReply("west", "a:1", op_msg(bson.encode({"ok": 1.0}), request_id=2))
    assert latest_operation_time([*replies, unanswered, without_times]) == pack_timestamp(LATER)
    assert latest_operation_time([unanswered, without_times]) == latest_operation_time([]) == 0


@pytest.mark.parametrize("form", FORMS)
def test_a_reply_that_shows_later_data(form: str, clock: VectorClock) -> None:
    reply = reply_of(FORMS[form], EARLIER)
    reply.raise_operation_time(pack_timestamp(LATER), clock)
    expected = {**FORMS[form], "operationTime": LATER}
    assert {name: value for name, value in reply.document.items() if name != "$clusterTime"} == expected
    assert reply.document["$clusterTime"]["clusterTime"] == NEWEST
    assert reply.operation_time == pack_timestamp(LATER)
    assert reply.is_usual == (form == "of a mongod")


def test_a_reply_that_is_late_enough_stays_as_it_is(clock: VectorClock) -> None:
    reply = reply_of(FORMS["of a mongod"], LATER)
    frame = reply.frame
    reply.raise_operation_time(pack_timestamp(EARLIER), clock)
    assert reply.frame is frame
