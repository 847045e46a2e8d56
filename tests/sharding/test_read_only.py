"""``readOnly`` in replies: it is added and taken away without a trace."""

import bson
import pytest
from bson.int64 import Int64
from bson.timestamp import Timestamp

from shardwright.router.replies.reply_builder import cluster_time_of_usual
from shardwright.sharding.transaction_protocol import take_read_only, with_read_only
from shardwright.wire.message import OpMsg, op_msg, with_checksum

SIGNATURE = {"hash": bytes(20), "keyId": Int64(0)}
USUAL = {
    **{"n": 1, "nModified": 1, "ok": 1.0},
    "$clusterTime": {"clusterTime": Timestamp(5, 6), "signature": SIGNATURE},
    "operationTime": Timestamp(5, 6),
}


@pytest.mark.parametrize("is_read_only", [False, True])
@pytest.mark.parametrize("reply", [USUAL, {"ok": 1.0}])
def test_what_was_added_is_taken_away(reply: dict[str, object], is_read_only: bool) -> None:
    frame = op_msg(bson.encode(reply), request_id=3, response_to=4)
    added = with_read_only(frame, is_read_only=is_read_only)
    assert bson.decode(OpMsg(added).body) == {"readOnly": is_read_only, **reply}
    assert take_read_only(added) == (frame, is_read_only)


def test_the_reply_remains_usual() -> None:
    frame = with_read_only(op_msg(bson.encode(USUAL), request_id=3), is_read_only=True)
    assert cluster_time_of_usual(frame) == 5 << 32 | 6


def test_a_checksum_that_would_be_wrong_is_left_out() -> None:
    frame = with_checksum(op_msg(bson.encode(USUAL), request_id=3))
    added = with_read_only(frame, is_read_only=True)
    assert bson.decode(OpMsg(added).body)["readOnly"] is True


def test_other_replies_have_none() -> None:
    assert take_read_only(op_msg(bson.encode(USUAL), request_id=3)) is None
    assert take_read_only(op_msg(bson.encode({**USUAL, "readOnly": True}), request_id=3)) is None
    assert take_read_only(op_msg(bson.encode({}), request_id=3)) is None
