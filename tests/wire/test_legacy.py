"""OP_QUERY frames: whole, truncated at every byte, with trailing bytes, and random."""

from struct import pack, unpack_from

import bson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.wire import legacy, rawbson
from shardwright.wire.errors import RemoteProtocolError
from shardwright.wire.frames import OP_REPLY
from tests.wire.raw_connection import op_query_frame

HELLO = op_query_frame("admin.$cmd", {"isMaster": 1, "helloOk": True}, flags=legacy.SECONDARY_OK)


def test_parse_query_reads_every_field() -> None:
    query = legacy.parse_query(op_query_frame("db.c", {"a": 1}, flags=4, skip=3, number_to_return=-2))
    assert query == legacy.LegacyQuery(
        request_id=9,
        flags=4,
        full_collection_name="db.c",
        skip=3,
        number_to_return=-2,
        query=bson.encode({"a": 1}),
    )


@pytest.mark.parametrize("wrapper", ["$query", "query"])
def test_parse_query_unwraps_the_command(wrapper: str) -> None:
    frame = op_query_frame("admin.$cmd", {wrapper: {"hello": 1}, "$readPreference": {"mode": "nearest"}})
    query = legacy.parse_query(frame)
    assert query.query == bson.encode({"hello": 1})
    assert legacy.is_permitted(query)


def test_parse_query_refuses_every_truncation() -> None:
    for length in range(len(HELLO)):
        with pytest.raises(RemoteProtocolError):
            legacy.parse_query(HELLO[:length])


@pytest.mark.parametrize("tail", [b"x", b"\0\0\0\0\0", bson.encode({}) + b"\0", pack("<i", 100) + bytes(20)])
def test_parse_query_refuses_trailing_bytes(tail: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        legacy.parse_query(HELLO + tail)


def test_parse_query_refuses_another_opcode() -> None:
    with pytest.raises(RemoteProtocolError):
        legacy.parse_query(HELLO[:12] + pack("<i", 2013) + HELLO[16:])


@given(st.binary(max_size=80))
def test_parse_query_reads_any_bytes_or_raises(body: bytes) -> None:
    frame = pack("<iiii", 16 + len(body), 1, 0, 2004) + body
    try:
        query = legacy.parse_query(frame)
    except RemoteProtocolError:
        return
    assert legacy.is_permitted(query) or legacy.unsupported_reply(query)


@given(st.integers(16, len(HELLO) - 1), st.integers(0, 255))
def test_parse_query_reads_a_changed_byte_or_raises(position: int, byte: int) -> None:
    try:
        query = legacy.parse_query(HELLO[:position] + bytes((byte,)) + HELLO[position + 1 :])
    except RemoteProtocolError:
        return
    assert legacy.is_permitted(query) or legacy.unsupported_reply(query)


def test_op_reply_carries_one_document() -> None:
    frame = legacy.op_reply(77, rawbson.EMPTY_DOCUMENT)
    assert unpack_from("<i4xiiIqii", frame) == (len(frame), 77, OP_REPLY, legacy.AWAIT_CAPABLE, 0, 0, 1)
    assert frame[36:] == rawbson.EMPTY_DOCUMENT
