"""Similar commands have their fields at the same positions; other commands are scanned."""

from typing import Any

import bson
import pytest
from bson import Int64, Regex
from hypothesis import assume, given
from hypothesis import strategies as st

from shardwright.wire import request
from shardwright.wire.message import OpMsg, op_msg
from shardwright.wire.rawbson import index
from shardwright.wire.request import COMMAND_LAYOUTS, CommandLayouts, Request
from tests.wire.test_rawbson import documents


def command(fields: dict[str, Any], *, name: str = "find", db: str = "shop") -> bytes:
    return bson.encode({name: "orders", **fields, "$db": db})


def learned(body: bytes) -> CommandLayouts:
    """Return layouts that include a command's, after it was seen often enough."""
    found = CommandLayouts()
    fields = index(body)
    for _ in range(2):
        assert found.find(body) is None
        found.learn(body, fields, "find", "shop")
    return found


@given(documents, st.lists(st.tuples(st.integers(0, 400), st.binary(min_size=1, max_size=8)), max_size=4))
def test_a_known_layout_locates_the_fields(fields: dict[str, Any], changes: list[tuple[int, bytes]]) -> None:
    body = command(fields)
    assume(len(body) <= request.BYTES_MAX)
    known = learned(body)
    changed = bytearray(body)
    for at, written in changes:
        end = min(at + len(written), len(body))
        changed[at:end] = written[: max(end - at, 0)]
    assert len(changed) == len(body)
    layout = known.find(bytes(changed))
    if layout is not None:
        assert index(bytes(changed)) == layout.fields
        assert bytes(changed[5:10] + changed[-6:-1]) == b"find\0shop\0"
    else:
        assert changed != body


def test_values_do_not_matter() -> None:
    known = learned(command({"filter": {"a": 1}, "limit": 1, "comment": "one"}))
    alike = command({"filter": {"b": 2}, "limit": 2, "comment": "two"})
    layout = known.find(alike)
    assert layout is not None
    assert (layout.fields, layout.name, layout.db) == (index(alike), "find", "shop")


@pytest.mark.parametrize(
    "other",
    [
        command({"filter": {"a": 1}, "skip_": 1}),
        command({"filter": {"a": 1}, "limit": 1.0}),
        command({"filter": {"a": "x"}, "limit": 1}),
        command({"filter": {"a": 1}, "limit": 1, "skip": 1}),
        command({"limit": 1, "filter": {"a": 1}}),
        command({"filter": {"a": 1}, "limit": 1}, db="shoe"),
        command({"filter": {"a": 1}, "limit": 1}, name="fine"),
    ],
)
def test_names_types_and_lengths_matter(other: bytes) -> None:
    assert learned(command({"filter": {"a": 1}, "limit": 1})).find(other) is None


def test_a_wrong_document_length_matters() -> None:
    body = command({"limit": 1})
    known = learned(body)
    assert known.find(body[:-1]) is None
    assert known.find(body + b"\0") is None


def test_values_without_a_length_prefix_have_no_layout() -> None:
    known = CommandLayouts()
    body = command({"hint": Regex("abc", "i")})
    for _ in range(3):
        known.learn(body, index(body), "find", "shop")
        assert known.find(body) is None


def test_long_commands_have_no_layout() -> None:
    known = CommandLayouts()
    body = command({"filter": {"a": "x" * 2_000}})
    for _ in range(3):
        known.learn(body, index(body), "find", "shop")
        assert known.find(body) is None


def test_the_number_of_layouts_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request, "_LAYOUTS_MAX", 2)
    known = learned(command({"limit": 1}))
    for name in ("count", "distinct"):
        other = command({}, name=name)
        known.learn(other, index(other), name, "shop")
    assert known.find(command({"limit": 1})) is None


def test_requests_are_recognised_by_their_layout() -> None:
    for number in range(3):
        body = command({"getMore": Int64(number), "lsid": {"id": number}})
        request = Request(OpMsg(op_msg(body, request_id=number)))
        assert (request.name, request.db, request.collection) == ("find", "shop", "orders")
        assert request.get(b"getMore") == number
        assert request.fields == index(body)
    assert COMMAND_LAYOUTS.find(body) is not None
