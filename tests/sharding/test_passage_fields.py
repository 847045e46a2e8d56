"""The key found in a frame is the one by which the ordinary functions target; other values do not matter to them."""

from datetime import UTC, datetime
from random import Random
from typing import Any

import bson
import pytest
from bson import Binary, Int64, ObjectId, Regex
from bson.timestamp import Timestamp
from hypothesis import given
from hypothesis import strategies as st

from shardwright.sharding.passage_fields import CommonFields, KeyInQuery, free_values, only_statement
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.sharding.targeting.filters import exact_shard_key, key_ranges
from shardwright.wire import rawbson
from shardwright.wire.message import BODY_AT, OpMsg, encode_sequence, op_msg
from shardwright.wire.rawbson import index
from shardwright.wire.request import Request

VALUES = st.one_of(
    st.integers(-(2**31), 2**31 - 1),
    st.integers(-(2**63), 2**63 - 1).map(Int64),
    st.text("ab$é", max_size=3),
    st.binary(max_size=3),
    st.booleans(),
    st.floats(),
    st.none(),
    st.just(ObjectId(bytes(12))),
    st.just(datetime(2024, 1, 1, tzinfo=UTC)),
    st.just(Regex("a")),
    st.just([1]),
    st.just({"$gt": 1}),
    st.just({"b": 1}),
)
QUERIES = st.dictionaries(st.sampled_from(["a", "b", "a.b", "c", "$and", "$or"]), VALUES, max_size=4)
PATTERNS = st.sampled_from([{"a": 1}, {"a": "hashed"}, {"a": 1, "b": 1}, {"b": "hashed", "a": 1}, {"a.b": 1}])


@given(QUERIES, PATTERNS, st.booleans())
def test_the_key_is_that_of_ordinary_targeting(query: dict[str, Any], key: dict[str, Any], is_simple: bool) -> None:
    pattern, raw = ShardKeyPattern.from_mapping(key), bson.encode(query)
    found = KeyInQuery.find(bytes(30) + raw, 30, pattern, is_simple=is_simple)
    if found is None:
        return
    exact = exact_shard_key(raw, pattern)
    assert exact is not None
    assert found.bytes_in(bytes(30) + raw) == pattern.key_bytes(exact)
    assert key_ranges(raw, pattern, simple_collation=is_simple).point == pattern.key_bytes(exact)


@pytest.mark.parametrize(
    "query", [{"a": 1}, {"a": "x"}, {"a": Int64(1)}, {"a": ObjectId()}, {"a": b"x"}, {"a": True}, {"c": 1, "a": 5}]
)
def test_plain_keys_are_found(query: dict[str, Any]) -> None:
    assert KeyInQuery.find(bson.encode(query), 0, ShardKeyPattern.from_mapping({"a": 1}), is_simple=True)


@given(st.dictionaries(st.text("abc", min_size=1, max_size=3), VALUES, max_size=5), st.randoms(), st.booleans())
def test_free_bytes_change_neither_names_nor_types_nor_lengths(
    document: dict[str, Any], random: Random, deep: bool
) -> None:
    raw = bson.encode(document)
    changed = bytearray(raw)
    for start, end in free_values(raw, 0, is_deep=deep):
        changed[start:end] = random.randbytes(end - start)
    assert index(bytes(changed)) == index(raw)


def fields_of(body: dict[str, Any]) -> tuple[bytes, CommonFields | None]:
    frame = op_msg(bson.encode({"find": "c", **body, "$db": "d"}), request_id=1)
    return frame, CommonFields.of(frame, Request(OpMsg(frame)).fields)


def time(**more: Any) -> dict[str, Any]:  # noqa: ANN401 - any value
    signature = {"hash": Binary(bytes(20)), "keyId": Int64(1)}
    return {"clusterTime": Timestamp(1, 2), "signature": signature, **more}


def test_the_usual_fields() -> None:
    frame, found = fields_of({"lsid": {"id": Binary(b"i" * 16, 4)}, "txnNumber": Int64(5), "$clusterTime": time()})
    assert found is not None
    assert found.lsid is not None
    assert bson.decode(frame[slice(*found.lsid)]) == {"id": Binary(b"i" * 16, 4)}
    assert frame[found.number_at : found.number_at + 8] == (5).to_bytes(8, "little")
    assert frame[found.time_at : found.time_at + 8] == (1 << 32 | 2).to_bytes(8, "little")
    assert sum(end - start for start, end in found.free) == 16 + 8 + 8 + 20 + 8


@pytest.mark.parametrize(
    "unusual",
    [
        1,
        {},
        {"clusterTime": Timestamp(1, 2)},
        time(more=1),
        {"signature": time()["signature"], "clusterTime": Timestamp(1, 2)},
        {**time(), "signature": {"hash": Binary(bytes(19)), "keyId": Int64(1)}},
        {**time(), "signature": {"hash": Binary(bytes(20)), "keyId": 1}},
        {**time(), "signature": {"keyId": Int64(1), "hash": Binary(bytes(20))}},
    ],
)
def test_unusual_times(unusual: Any) -> None:  # noqa: ANN401 - any value
    assert fields_of({"$clusterTime": unusual})[1] is None


@pytest.mark.parametrize("session", [1, {}, {"id": 1}, {"id": Binary(bytes(16), 3)}, {"uid": 1, "id": 2}])
def test_an_unusual_session_has_to_be_the_same(session: Any) -> None:  # noqa: ANN401 - any value
    found = fields_of({"lsid": session})[1]
    assert found is not None
    assert not found.free


@pytest.mark.parametrize("count", [0, 1, 2])
def test_the_only_statement(count: int) -> None:
    statements = [bson.encode({"q": {"a": number}}) for number in range(count)]
    body = bson.encode({"delete": "c", "$db": "d"})
    frame = op_msg(body, request_id=1, sections=encode_sequence(b"deletes", statements))
    found = only_statement(frame, body, index(body), b"deletes")
    assert (found is not None) == (count == 1)
    if found is not None:
        assert frame[found[0] :] == statements[0]
    inside = bson.encode({"delete": "c", "deletes": [{"q": {"a": number}} for number in range(count)], "$db": "d"})
    frame = op_msg(inside, request_id=1)
    found = only_statement(frame, inside, index(inside), b"deletes")
    assert (found is not None) == (count == 1)
    if found is not None:
        assert frame.startswith(statements[0], found[0])
        assert found[0] > BODY_AT


@pytest.mark.parametrize(
    ("concern", "is_usual", "has_time"),
    [
        ({}, True, False),
        ({"level": "majority"}, True, False),
        ({"level": "local", "afterClusterTime": Timestamp(5, 6)}, True, True),
        ({"afterClusterTime": 5}, False, False),
        ({"level": "snapshot", "atClusterTime": Timestamp(5, 6)}, False, False),
        (bson.SON([("afterClusterTime", Timestamp(5, 6)), ("atClusterTime", Timestamp(5, 6))]), False, False),
        (1, False, False),
    ],
)
def test_read_concerns(concern: object, is_usual: bool, has_time: bool) -> None:
    body = bson.encode({"find": "c", "readConcern": concern, "$db": "d"})
    found = CommonFields.of(op_msg(body, request_id=1), index(body))
    assert (found is not None) == is_usual
    if found is not None:
        assert bool(found.awaited_at) == has_time
        assert found.free == ([(found.awaited_at, found.awaited_at + 8)] if has_time else [])
        if has_time:
            frame = op_msg(body, request_id=1)
            assert frame[found.awaited_at :].startswith(b"\6\0\0\0\5\0\0\0")


def test_a_read_concern_with_two_times() -> None:
    times = b"".join(rawbson.element(b"afterClusterTime", rawbson.TIMESTAMP, bytes(8)) for _ in range(2))
    concern = rawbson.element(b"readConcern", rawbson.OBJECT, rawbson.from_elements(times))
    body = rawbson.append(bson.encode({"find": "c", "$db": "d"}), concern)
    assert CommonFields.of(op_msg(body, request_id=1), index(body)) is None
