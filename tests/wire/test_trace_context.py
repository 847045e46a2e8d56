"""Traces in requests."""

from typing import Any

import bson
import pytest
from bson.regex import Regex

from shardwright.wire.message import OpMsg, encode_sequence, op_msg
from shardwright.wire.rawbson import OBJECT, STRING, element, from_elements, string_value
from shardwright.wire.request import Request
from shardwright.wire.trace_context import TraceContext, client_trace, router_trace

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{SPAN}-01"


def request(command: dict[str, Any], sections: bytes = b"") -> Request:
    return Request(OpMsg(op_msg(bson.encode({**command, "$db": "d"}), request_id=1, sections=sections)))


@pytest.mark.parametrize(
    ("text", "is_sampled"),
    [(PARENT, True), (f"00-{TRACE}-{SPAN}-00", False), (f"00-{TRACE}-{SPAN}-ff", True), (PARENT[2:], None)],
)
def test_flags_decide(text: str, is_sampled: bool | None) -> None:
    found = TraceContext.parse(text)
    assert (None if found is None else found.is_sampled) is is_sampled


@pytest.mark.parametrize(
    "text",
    [
        None,
        5,
        "",
        "hello",
        PARENT.upper(),
        PARENT + "-more",
        PARENT + "\n",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE[1:]}-{SPAN}-01",
    ],
)
def test_malformed_text_is_ignored(text: object) -> None:
    assert TraceContext.parse(text) is None


def test_a_later_version_may_have_more() -> None:
    found = TraceContext.parse(f"01-{TRACE}-{SPAN}-01-more")
    assert found is not None
    assert found.traceparent == PARENT


@pytest.mark.parametrize(
    "command",
    [
        {"find": "c", "comment": PARENT},
        {"find": "c", "comment": {"traceparent": PARENT, "more": 1}},
        {"find": "c", "filter": {"a": 1, "$comment": PARENT}},
        {"find": "c", "comment": "mine", "filter": {"$comment": {"traceparent": PARENT}}},
        {"count": "c", "query": {"$comment": PARENT}},
        {"findAndModify": "c", "query": {"$comment": PARENT}},
        {"update": "c", "updates": [{"q": {"$comment": PARENT}, "u": {}}]},
        {"delete": "c", "deletes": [{"q": {"$comment": PARENT}, "limit": 0}]},
    ],
)
def test_comments_name_the_trace(command: dict[str, Any]) -> None:
    found = client_trace(request(command))
    assert found is not None
    assert (found.trace_id, found.span_id) == (TRACE, SPAN)


@pytest.mark.parametrize("name", ["comment", "filter", "traceContext"])
def test_a_document_nested_too_deep_is_not_decoded(name: str) -> None:
    nested = bson.encode({})
    for _ in range(5_000):
        nested = from_elements(element(b"$comment", OBJECT, nested))
    fields = element(b"find", STRING, string_value("c")) + element(name.encode(), OBJECT, nested)
    body = from_elements(fields + element(b"$db", STRING, string_value("d")))
    received = Request(OpMsg(op_msg(body, request_id=1)))
    assert client_trace(received) is None
    assert router_trace(received) is None


def test_statements_may_be_in_a_section() -> None:
    section = encode_sequence(b"updates", [bson.encode({"q": {"$comment": PARENT}, "u": {}})])
    assert client_trace(request({"update": "c"}, section)) is not None


@pytest.mark.parametrize(
    "command",
    [
        {"find": "c"},
        {"find": "c", "comment": Regex("x")},
        {"find": "c", "comment": ["x", {"traceparent": PARENT}]},
        {"find": "c", "filter": {"a": {"$comment": PARENT}}},
        {"find": "c", "filter": {"$comment": 5}},
        {"find": "c", "filter": f"$comment {PARENT}"},
        {"update": "c", "updates": 5, "x": "$comment"},
        {"update": "c", "updates": [{"u": "$comment"}]},
        {"update": "c", "updates": [], "x": "$comment"},
        {"insert": "c", "documents": [{"$comment": PARENT}]},
    ],
)
def test_nothing_else_does(command: dict[str, Any]) -> None:
    assert client_trace(request(command)) is None
