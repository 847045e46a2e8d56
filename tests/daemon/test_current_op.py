"""The daemon's own operations among its mongod's."""

from typing import Any

import bson

from shardwright.daemon.current_op import union_with, with_daemon_operations
from shardwright.wire.message import OpMsg, op_msg
from shardwright.wire.request import Request


def test_a_small_command_is_shown_as_it_is() -> None:
    operation = {"type": "op", "command": {"key": {"a": 1}, "comment": "x" * 900}}
    assert _operations(union_with([operation])) == [operation]


def test_of_a_large_command_the_beginning_is_shown() -> None:
    command = {"collInfo": {"uuid": bson.Binary(bytes(16), 4)}, "request": b"x" * 15_000_000, "indexes": [{}] * 5_000}
    (shown,) = _operations(union_with([{"type": "op", "command": command, "active": True}]))
    assert list(shown) == ["type", "command", "active"]
    assert list(shown["command"]) == ["$truncated"]
    assert shown["command"]["$truncated"].startswith('{"collInfo": {"uuid": {"$binary"')
    assert len(shown["command"]["$truncated"]) == 1_000


def test_operations_whose_commands_have_megabytes_fit_into_one() -> None:
    operations = [{"type": "op", "command": {"comment": "x" * 15_000_000}} for _ in range(3)]
    asked = {"aggregate": 1, "pipeline": [{"$currentOp": {}}], "cursor": {}, "$db": "admin"}
    request = Request(OpMsg(op_msg(bson.encode(asked), request_id=1)))
    frame = with_daemon_operations(request, lambda: operations, None)
    assert len(frame) < 10_000
    assert len(_operations(bson.decode(frame[21:])["pipeline"][1])) == 3


def _operations(stage: dict[str, Any]) -> list[dict[str, Any]]:
    documents = stage["$unionWith"]["pipeline"][0]["$documents"]
    return [each["$literal"] for each in documents]
