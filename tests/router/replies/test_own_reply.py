"""The router's own replies, as documents and as raw elements."""

import bson
import pytest
from bson.timestamp import Timestamp

from shardwright.router.replies.reply_builder import gossip, raw_reply
from shardwright.sharding.clock import VectorClock, VectorTime
from shardwright.sharding.cluster_time import pack_timestamp
from shardwright.wire.message import OpMsg


@pytest.mark.parametrize("time", [0, pack_timestamp(Timestamp(7, 3))])
def test_raw_replies_end_as_others_do(time: int) -> None:
    clock = VectorClock(VectorTime(time))
    message = OpMsg(raw_reply(5, (bson.encode({"n": 1})[4:-1], bson.encode({"m": 2})[4:-1]), clock))
    assert message.response_to == 5
    assert message.body == bson.encode({"n": 1, "m": 2, "ok": 1.0, **gossip(clock)})


def test_an_operation_may_be_older_than_the_newest_time() -> None:
    newest, earlier = Timestamp(7, 3), Timestamp(6, 9)
    clock = VectorClock(VectorTime(pack_timestamp(newest)))
    reply = bson.decode(OpMsg(raw_reply(5, (), clock, pack_timestamp(earlier))).body)
    assert (reply["$clusterTime"]["clusterTime"], reply["operationTime"]) == (newest, earlier)
    assert reply == bson.decode(bson.encode({"ok": 1.0, **gossip(clock, pack_timestamp(earlier))}))
