"""The namespace whose versions an operation is checked against."""

from typing import Any

import bson
import pytest

from shardwright.shardd.operations.admission import namespace_of
from shardwright.wire.message import OpMsg, op_msg
from shardwright.wire.request import Request


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ({"find": "c"}, "d.c"),
        ({"explain": {"find": "c"}}, "d.c"),
        ({"dataSize": "e.c"}, "e.c"),
        ({"dbStats": 1}, "d"),
        ({"filemd5": 1}, "d.fs.chunks"),
        ({"filemd5": "a name"}, "d.fs.chunks"),
        ({"filemd5": {"a": "b"}, "root": "files"}, "d.files.chunks"),
    ],
    ids=str,
)
def test_namespace_of(command: dict[str, Any], expected: str) -> None:
    request = Request(OpMsg(op_msg(bson.encode({**command, "$db": "d"}), request_id=1)))
    assert namespace_of(request) == expected
