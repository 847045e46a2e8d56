"""The forms of stale errors."""

from typing import Any

import bson
import pytest
from bson.timestamp import Timestamp

from shardwright.sharding.versions import UNSHARDED, stale_config, stale_reply
from shardwright.wire.errors import CommandError
from shardwright.wire.message import OpMsg, op_msg
from shardwright.wire.request import Request

ERROR = stale_config("d.c", UNSHARDED, UNSHARDED, "sh0", "mismatch", may_shard_be_stale=False)

GOSSIP = {"$configTime": Timestamp(9, 1)}


def request(fields: dict[str, Any]) -> Request:
    return Request(OpMsg(op_msg(bson.encode({**fields, "$db": "d"}), request_id=1)))


def test_a_read_fails() -> None:
    with pytest.raises(CommandError) as caught:
        stale_reply(request({"find": "c"}), ERROR, GOSSIP)
    assert list(caught.value.reply()) == [
        *("ok", "errmsg", "code", "codeName"),
        *("ns", "vReceived", "vWanted", "shardId", "$configTime"),
    ]
    assert caught.value.reply()["codeName"] == "StaleConfig"


@pytest.mark.parametrize(
    ("command", "items", "extra"),
    [("insert", "documents", {}), ("update", "updates", {"nModified": 0}), ("delete", "deletes", {})],
)
def test_an_ordered_write_stops_at_the_first_item(command: str, items: str, extra: dict[str, int]) -> None:
    reply = stale_reply(request({command: "c", items: [{"x": 1}, {"x": 2}]}), ERROR, GOSSIP)
    assert reply == {
        "n": 0,
        "writeErrors": [{"index": 0, "code": 13388, "errmsg": "mismatch", **ERROR.extra}],
        **extra,
        "ok": 1.0,
        **GOSSIP,
    }


def test_all_items_of_an_unordered_write_fail_and_the_first_says_why() -> None:
    reply = stale_reply(request({"insert": "c", "documents": [{}, {}, {}], "ordered": False}), ERROR, {})
    assert [(each["index"], each["errmsg"]) for each in reply["writeErrors"]] == [(0, "mismatch"), (1, ""), (2, "")]


def test_in_a_transaction_the_command_fails_and_the_transaction_may_be_retried() -> None:
    fields = {"insert": "c", "documents": [{}], "txnNumber": bson.Int64(1), "autocommit": False}
    with pytest.raises(CommandError) as caught:
        stale_reply(request(fields), ERROR, {})
    assert caught.value.labels == ("TransientTransactionError",)
    assert caught.value.extra == ERROR.extra
