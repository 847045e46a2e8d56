"""Requests that continue a transaction as drivers do are recognised without decoding."""

from typing import Any

import bson
import pytest
from bson import Binary, Int64
from hypothesis import given
from hypothesis import strategies as st

from shardwright.sharding import transaction_protocol
from shardwright.sharding.passage_fields import usual_session_id
from shardwright.sharding.transaction_protocol import check_transaction_fields
from shardwright.wire.errors import CommandError
from shardwright.wire.message import OpMsg, op_msg
from shardwright.wire.rawbson import index
from shardwright.wire.request import Request

SESSION = {"id": Binary(bytes(range(16)), 4)}
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "lsid": st.just(SESSION),
    "txnNumber": st.sampled_from([Int64(0), Int64(2**63 - 1), Int64(-1), Int64(-(2**63)), 1, 1.0]),
    "autocommit": st.sampled_from([False, True, 0]),
    "startTransaction": st.sampled_from([True, False, 1]),
}
COMMANDS = st.sampled_from(["find", "update", "getMore", "commitTransaction", "ping", "hello", "endSessions"])


@given(COMMANDS, st.fixed_dictionaries({}, optional=FIELDS))
def test_what_is_recognised_has_no_error(name: str, fields: dict[str, Any]) -> None:
    request = Request(OpMsg(op_msg(bson.encode({name: "c", **fields, "$db": "d"}), request_id=1)))
    is_recognised = transaction_protocol._continues_usually(request)
    try:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(transaction_protocol, "_continues_usually", lambda _: False)
            check_transaction_fields(request)
    except CommandError:
        assert not is_recognised
    else:
        has_all = {"lsid", "txnNumber", "autocommit"} <= fields.keys() and "startTransaction" not in fields
        assert is_recognised == has_all


@pytest.mark.parametrize(
    "lsid",
    [
        SESSION,
        {**SESSION, "uid": Binary(bytes(32))},
        {"id": Binary(bytes(16), 3)},
        {"id": Binary(bytes(15), 4)},
        {"txnNumber": Int64(1), **SESSION},
        {"ie": Binary(bytes(16), 4)},
        {},
    ],
)
def test_sessions_in_the_usual_form(lsid: dict[str, Any]) -> None:
    raw = bson.encode(lsid)
    found = usual_session_id(raw)
    if lsid == SESSION:
        _, _, start, end = index(raw)[b"id"]
        assert found == raw[start + 5 : end] == bytes(range(16))
    else:
        assert found is None
