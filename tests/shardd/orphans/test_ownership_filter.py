"""On mongod, the ownership filter agrees with routing tables, for all types, all patterns and any collation."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import pytest
from bson.raw_bson import RawBSONDocument
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pymongo.collection import Collection

from shardwright.shardd.orphans.ownership_filter import OwnershipFilter
from shardwright.sharding.chunks import ChunkRange
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.wire import rawbson
from tests.sampling import many
from tests.sharding import bson_values
from tests.sharding.bson_values import Value, document_of, int32, string

FRENCH = {"locale": "fr", "strength": 1}
COLLATIONS: Sequence[Mapping[str, Any]] = (
    {"locale": "simple"},
    FRENCH,
    {"locale": "de", "numericOrdering": True},
    {"locale": "en", "strength": 2, "alternate": "shifted"},
)
PATTERNS = (
    {"a": 1},
    {"a": 1, "b": 1},
    {"a.b": 1},
    {"a": 1, "b": 1, "a2.b": 1},
    {"a": "hashed"},
    {"a": "hashed", "b": 1},
    {"a": 1, "b": "hashed"},
)

_texts = st.text(st.sampled_from("\0\x01aAbBeéE$.19 "), max_size=4).map(string)
_keyable = (bson_values.values | _texts).filter(lambda value: value[0] != rawbson.ARRAY)
_in_object = (_keyable | _texts).map(lambda value: (rawbson.OBJECT, document_of([("b", value)])))
_maybe = st.none() | _keyable | _in_object


@st.composite
def documents(draw: st.DrawFn) -> list[bytes]:
    """Documents with or without the fields of the patterns."""
    keys = draw(st.lists(st.tuples(_maybe, _maybe, _maybe), min_size=1, max_size=25))
    made = []
    for number, values in enumerate(keys):
        fields = [("_id", int32(number))]
        fields += [(name, value) for name, value in zip(("a", "b", "a2"), values, strict=True) if value is not None]
        # A dotted key must not lead through an array, which no stored document of a sharded collection does.
        if not any(_has_array_at_b(value) for value in values):
            made.append(document_of(fields))
    return made


def _has_array_at_b(value: Value | None) -> bool:
    if value is None or value[0] != rawbson.OBJECT:
        return False
    span = rawbson.find(value[1], b"b")
    return span is not None and span[0] == rawbson.ARRAY


def ranges_between(pattern: ShardKeyPattern, bounds: list[bytes], first: int) -> list[ChunkRange]:
    """Every second range between bounds, from the first or the second on."""
    by_key = {pattern.key_bytes(bound): bound for bound in bounds}
    keys = sorted(by_key)
    pairs = list(pairwise(keys))[first::2]
    return [ChunkRange(by_key[low], by_key[high], low, high) for low, high in pairs]


def matched(collection: Collection[dict[str, Any]], query: bytes, collation: Mapping[str, Any]) -> set[int]:
    """Ids of the documents that a query matches."""
    return {each["_id"] for each in collection.find(RawBSONDocument(query), {"_id": 1}, collation=collation)}


@settings(max_examples=many(150, 50), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    found=documents(),
    pattern=st.sampled_from(PATTERNS),
    more=st.lists(st.tuples(_keyable, _keyable, _keyable), max_size=3),
    first=st.integers(0, 1),
    ends=st.booleans(),
    collation=st.sampled_from(COLLATIONS),
)
@example(
    found=[
        document_of([("_id", int32(n)), ("a", string(text))]) for n, text in enumerate(("e", "é", "E", "f", "a\0b"))
    ],
    pattern={"a": 1},
    more=[(string("E"), int32(0), int32(0)), (string("e\0"), int32(0), int32(0))],
    first=0,
    ends=False,
    collation=FRENCH,
)
def test_the_filter_agrees_with_routing(
    collection: Collection[dict[str, Any]],
    found: list[bytes],
    pattern: dict[str, Any],
    more: list[tuple[Value, ...]],
    first: int,
    ends: bool,
    collation: Mapping[str, Any],
) -> None:
    shard_key = ShardKeyPattern.from_mapping(pattern)
    bounds = [shard_key.extract_from_document(document) for document in found[:4]]
    for values in more:
        document = b"".join(
            rawbson.element(name, *value)
            for name, value in zip((b"a", b"b", b"a2"), (*values[:2], (rawbson.OBJECT, _at_b(values[2]))), strict=True)
        )
        if not any(_has_array_at_b(value) for value in values):
            bounds.append(shard_key.extract_from_document(rawbson.from_elements(document)))
    if ends:
        bounds += [shard_key.global_min(), shard_key.global_max()]
    ownership = OwnershipFilter(shard_key, ranges_between(shard_key, bounds, first), {"locale": "simple"})
    collection.delete_many({})
    if found:
        collection.insert_many(map(RawBSONDocument, found))
    owned = {
        rawbson.decode_value(document, rawbson.index(document)[b"_id"])
        for document in found
        if not ownership.is_orphan(shard_key.key_bytes_of_document(document))
    }
    assert matched(collection, ownership.query(collation), collation) == owned


_SMALL = st.recursive(
    st.sampled_from([string("a"), string("A"), string(""), string("a", rawbson.SYMBOL), int32(1), (rawbson.NULL, b"")]),
    lambda inner: st.one_of(
        st.lists(st.tuples(st.sampled_from(("", "a", "A")), inner), max_size=2, unique_by=lambda field: field[0]).map(
            lambda fields: (rawbson.OBJECT, document_of(fields))
        ),
        st.lists(inner, max_size=2).map(bson_values.array_of),
    ),
    max_leaves=4,
)


@settings(max_examples=many(60, 20), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    values=st.lists(
        st.lists(st.tuples(st.sampled_from("aAb"), _SMALL), max_size=3, unique_by=lambda field: field[0]),
        min_size=2,
        max_size=30,
    )
)
@example(values=[[("a", string("a"))], [("a", string("a")), ("b", string("a"))], [("b", string("a"))]])
def test_embedded_strings_are_compared_as_bytes(
    collection: Collection[dict[str, Any]], values: list[list[tuple[str, Value]]]
) -> None:
    pattern = ShardKeyPattern.from_mapping({"a": 1, "b": 1})
    keys = [
        document_of([("a", (rawbson.OBJECT, document_of(fields))), ("b", int32(-number))])
        for number, fields in enumerate(values)
    ]
    collection.delete_many({})
    numbered = [
        RawBSONDocument(rawbson.append(key, rawbson.element(b"_id", *int32(number)))) for number, key in enumerate(keys)
    ]
    collection.insert_many(numbered)
    bounds = sorted(keys, key=pattern.key_bytes)
    for low, high in ((bounds[0], bounds[-1]), (bounds[len(bounds) // 2], pattern.global_max())):
        if pattern.key_bytes(low) < pattern.key_bytes(high):
            ownership = OwnershipFilter(pattern, [ChunkRange.of(pattern, low, high)], None)
            owned = {n for n, key in enumerate(keys) if not ownership.is_orphan(pattern.key_bytes(key))}
            assert matched(collection, ownership.query(FRENCH), FRENCH) == owned


def _at_b(value: Value) -> bytes:
    return document_of([("b", value)])


@pytest.mark.parametrize(
    ("key", "is_orphan"), [(-1, False), (0, True), (9, True), (10, False), (20, True), ({"$maxKey": 1}, False)]
)
def test_keys_in_orphan_ranges(key: object, is_orphan: bool) -> None:
    pattern = ShardKeyPattern.from_mapping({"a": 1})

    def bound(value: object) -> bytes:
        return rawbson.encode_document({"a": value})

    ranges = [ChunkRange.of(pattern, bound(low), bound(high)) for low, high in ((0, 10), (20, 30))]
    assert OwnershipFilter(pattern, ranges, None).is_orphan(pattern.key_bytes(bound(key))) is is_orphan


def test_the_last_range_includes_its_upper_bound() -> None:
    pattern = ShardKeyPattern.from_mapping({"a": 1})
    last = ChunkRange.of(pattern, rawbson.encode_document({"a": 0}), pattern.global_max())
    assert OwnershipFilter(pattern, [last], None).is_orphan(pattern.global_max_bytes())
