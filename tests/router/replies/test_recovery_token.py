"""The recovery token gets into a usual reply as into any other."""

from typing import Any

import bson
import pytest
from bson.int64 import Int64
from bson.timestamp import Timestamp

from shardwright.router.replies.reply_builder import with_recovery_token
from shardwright.wire.errors import CommandError
from shardwright.wire.message import OpMsg, op_msg

TIMES: dict[str, Any] = {
    "$clusterTime": {"clusterTime": Timestamp(5, 6), "signature": {"hash": bytes(20), "keyId": Int64(0)}},
    "operationTime": Timestamp(5, 6),
}
TOKEN = {"recoveryToken": {"recoveryShardId": "a"}}
ERRORS = [{"index": 0, "code": 11000, "errmsg": "a duplicate"}]


def frame(document: dict[str, Any]) -> bytes:
    return op_msg(bson.encode(document), request_id=2, response_to=1)


def fields_of(reply: object) -> list[tuple[str, Any]]:
    assert isinstance(reply, bytes)
    return list(bson.decode(OpMsg(reply).body).items())


@pytest.mark.parametrize("extra", [{}, {"$configTime": Timestamp(1, 1)}], ids=["usual", "of a genuine shard"])
def test_the_token_is_before_the_times(extra: dict[str, Any]) -> None:
    result = {"n": 1, "ok": 1.0, **extra}
    reply, code = with_recovery_token(frame({**result, **TIMES}), "a")
    assert fields_of(reply) == list({**result, **TOKEN, **TIMES}.items())
    assert code == 0


def test_without_times_it_is_last() -> None:
    reply, _ = with_recovery_token(frame({"n": 1, "ok": 1.0}), None)
    assert fields_of(reply) == [("n", 1), ("ok", 1.0), ("recoveryToken", {})]


def test_the_error_of_an_item_is_told() -> None:
    reply, code = with_recovery_token(frame({"n": 0, "writeErrors": ERRORS, "ok": 1.0, **TIMES}), "a")
    assert dict(fields_of(reply))["recoveryToken"] == {"recoveryShardId": "a"}
    assert code == 11000


def test_a_value_that_looks_like_an_error_is_none() -> None:
    reply, code = with_recovery_token(frame({"value": {"writeErrors": ERRORS}, "ok": 1.0, **TIMES}), "a")
    assert dict(fields_of(reply))["value"] == {"writeErrors": ERRORS}
    assert code == 0


def test_a_failed_reply_is_raised() -> None:
    with pytest.raises(CommandError):
        with_recovery_token(frame({"ok": 0.0, "code": 1, "errmsg": "no", **TIMES}), "a")
