"""The usual reply of a mongod is recognised at a glance, and then means what a full reading would find."""

from typing import Any

import bson
import pytest
from bson.int64 import Int64
from bson.objectid import ObjectId
from bson.timestamp import Timestamp

from shardwright.router.replies.reply_builder import cluster_time_of_usual, operation_time_of_usual, signed
from shardwright.router.replies.shard_reply import ShardReply
from shardwright.sharding.clock import VectorClock
from shardwright.sharding.cluster_time import SigningKey, SigningKeys, TimeSigner, pack_timestamp, proof_of
from shardwright.wire.message import OpMsg, op_msg, with_checksum

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


def test_the_operation_time_of_a_usual_reply() -> None:
    earlier = Timestamp(TIME.time - 1, 3)
    assert operation_time_of_usual(frame({**USUAL, "operationTime": earlier})) == pack_timestamp(earlier)


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


KEY = SigningKey(7, b"k" * 20, 2_000_000_000 << 32)


@pytest.mark.parametrize("changes", [{}, {"ok": 0.0, "code": 2}, {"ok": 1}], ids=str)
def test_the_time_of_a_reply_is_signed(changes: dict[str, Any]) -> None:
    times = {"$clusterTime": CLUSTER_TIME, "operationTime": TIME}
    reply = frame({"ok": 1.0, **changes, **times})
    signature = {"hash": proof_of(KEY, pack_timestamp(TIME)), "keyId": Int64(7)}
    signed_time = {"clusterTime": TIME, "signature": signature}
    told = OpMsg(signed(reply, TimeSigner(SigningKeys([KEY]))))
    assert bson.decode(told.body) == bson.decode(OpMsg(reply).body) | {"$clusterTime": signed_time}


@pytest.mark.parametrize("document", [{"ok": 1.0}, without("$clusterTime"), without("operationTime")], ids=str)
def test_a_reply_without_a_time_is_not_signed(document: dict[str, Any]) -> None:
    reply = frame(document)
    assert signed(reply, TimeSigner(SigningKeys([KEY]))) is reply


def test_without_keys_the_dummy_signature_remains() -> None:
    reply = frame(USUAL)
    assert signed(reply, TimeSigner()) is reply


@pytest.mark.parametrize("changes", [{}, {"ok": 0.0, "code": 2}], ids=str)
def test_without_keys_users_are_told_no_time(changes: dict[str, Any]) -> None:
    signer, answer = TimeSigner(withholds_unsigned=True), {"n": 1, "ok": 1.0, **changes}
    reply = frame({**answer, "$clusterTime": CLUSTER_TIME, "operationTime": TIME})
    assert signed(reply, signer) == op_msg(bson.encode(answer), request_id=2, response_to=1)
    assert signed(reply, signer, keeps_length=True) is reply
    signer.keys = SigningKeys([KEY])
    assert bson.decode(OpMsg(signed(reply, signer)).body)["operationTime"] == TIME


def test_fields_that_are_mentioned_in_a_value_only() -> None:
    document = {"value": {"writeErrors": [], "electionId": 1}, "n": 1, **without("cursor")}
    reply = ShardReply("shard0", "host:1", frame(document))
    assert (reply.has(b"n"), reply.has(b"writeErrors"), reply.has(b"nModified")) == (True, False, False)
    assert reply.for_client(frozenset({b"electionId"})) == reply.frame


def test_a_field_that_is_hidden_is_removed_from_a_usual_reply() -> None:
    reply = ShardReply("shard0", "host:1", frame({"n": 1, "electionId": 1, **without("cursor")}))
    assert bson.decode(OpMsg(reply.for_client(frozenset({b"electionId"}))).body) == {"n": 1, **without("cursor")}


NOT_FOR_CLIENTS: dict[str, Any] = {"electionId": ObjectId(), "opTime": {"ts": TIME, "t": Int64(1)}}
END: dict[str, Any] = {name: USUAL[name] for name in ("ok", "$clusterTime", "operationTime")}


@pytest.mark.parametrize(
    "written",
    [
        {"n": 1, **NOT_FOR_CLIENTS},
        {"n": 1, **NOT_FOR_CLIENTS, "nModified": 1},
        {"n": 1, **NOT_FOR_CLIENTS, "upserted": [{"index": 0, "_id": {"electionId": 1}}], "nModified": 0},
        {"n": 0, **NOT_FOR_CLIENTS, "writeErrors": [{"index": 0, "code": 11000, "errmsg": "opTime"}]},
        {"electionId": ObjectId(), "n": 1, "opTime": 5},
        {"n": Int64(1), **NOT_FOR_CLIENTS},
        {"n": 1, "nModified": 1},
    ],
    ids=["insert", "update", "upsert", "errors", "in another order", "of other types", "none"],
)
def test_what_mongods_tell_of_themselves_is_not_for_clients(written: dict[str, Any]) -> None:
    reply = ShardReply("sh0", "a:1", frame({**written, **END}))
    shown = OpMsg(reply.for_client(frozenset({b"electionId", b"opTime"}))).body
    assert list(bson.decode(shown).items()) == [
        (name, value) for name, value in ({**written, **END}).items() if name not in NOT_FOR_CLIENTS
    ]
