"""The usual reply of a mongod is recognised at a glance, and then means what a full reading would find."""

from typing import Any

import bson
import pytest
from bson.int64 import Int64
from bson.timestamp import Timestamp

from shardwright.router.replies.shard_reply import ShardReply
from shardwright.router.replies.usual_reply import cluster_time_of_usual
from shardwright.sharding.clock import VectorClock
from shardwright.sharding.timestamps import pack_timestamp
from shardwright.wire.message import op_msg, with_checksum

TIME = Timestamp(1_700_000_000, 7)
CLUSTER_TIME = {"clusterTime": TIME, "signature": {"hash": bytes(20), "keyId": Int64(0)}}
USUAL: dict[str, Any] = {
    "cursor": {"firstBatch": [], "id": Int64(0), "ns": "test.c"},
    "ok": 1.0,
    "$clusterTime": CLUSTER_TIME,
    "operationTime": TIME,
}


def frame(document: dict[str, Any]) -> bytes:
    return op_msg(bson.encode(document), request_id=2, response_to=1)


def without(name: str) -> dict[str, Any]:
    return {key: value for key, value in USUAL.items() if key != name}


def test_the_cluster_time_of_a_usual_reply() -> None:
    assert cluster_time_of_usual(frame(USUAL)) == pack_timestamp(TIME)


@pytest.mark.parametrize(
    "document",
    [
        pytest.param(USUAL | {"ok": 0.0}, id="failed"),
        pytest.param(USUAL | {"ok": 1}, id="ok of another type"),
        pytest.param(without("operationTime"), id="no operationTime"),
        pytest.param(without("$clusterTime"), id="no $clusterTime"),
        pytest.param(without("operationTime") | {"operationTime": 5}, id="operationTime of another type"),
        pytest.param({"$configTime": TIME} | USUAL | {"$configTime": TIME, "more": 1}, id="something behind"),
        pytest.param(
            {"ok": 1.0, "$gleStats": {"lastOpTime": TIME}, "$clusterTime": CLUSTER_TIME, "operationTime": TIME},
            id="a genuine shard's fields in between",
        ),
        pytest.param({"ok": 1.0}, id="too short"),
    ],
)
def test_other_replies_are_not_usual(document: dict[str, Any]) -> None:
    assert cluster_time_of_usual(frame(document)) == 0


def test_a_reply_with_a_checksum_is_not_usual() -> None:
    assert cluster_time_of_usual(with_checksum(frame(USUAL))) == 0


def test_a_usual_reply_reads_as_any_other() -> None:
    reply = ShardReply("shard0", "a:1", frame(USUAL))
    assert reply.error is None
    assert reply.document == USUAL
    assert list(reply.fields) == [name.encode() for name in USUAL]
    assert reply.for_client() is reply.frame


@pytest.mark.parametrize("document", [USUAL, {"$configTime": TIME} | USUAL], ids=["usual", "with a config time"])
def test_a_clock_is_told_the_time_of_any_reply(document: dict[str, Any]) -> None:
    clock = VectorClock()
    ShardReply("shard0", "a:1", frame(document)).tell(clock)
    assert clock.time.cluster_time == pack_timestamp(TIME)
