"""The numbers that clients give to the statements of a retryable write."""

from typing import Any

import bson
import pytest

from shardwright.router.writes.batch import check_distinct
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.message import OpMsg, op_msg
from shardwright.wire.request import Request


def insert(ids: list[Any]) -> Request:
    command = {"insert": "c", "documents": [{"_id": n} for n in range(len(ids))], "stmtIds": ids, "$db": "d"}
    return Request(OpMsg(op_msg(bson.encode(command), request_id=1)))


@pytest.mark.parametrize("ids", [[1, 1], [0, 5, 0], [-3, -3], [-2, -2], [None, 4, 4]])
def test_an_insert_of_two_documents_under_one_id_is_refused(ids: list[Any]) -> None:
    with pytest.raises(CommandError) as refusal:
        check_distinct(insert(ids))
    assert refusal.value.code == ErrorCode.InvalidOptions


@pytest.mark.parametrize("ids", [[1, 2], [-1, -1], [-3, -2, -1, -1, 0], []])
def test_others_pass(ids: list[Any]) -> None:
    check_distinct(insert(ids))
