"""Sort keys read from whole documents equal the ones that a mongod computes."""

from collections.abc import Mapping
from typing import Any

import bson
import pytest
from bson.raw_bson import DEFAULT_RAW_BSON_OPTIONS, RawBSONDocument
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pymongo.collection import Collection

from shardwright.router.reads.sort_order import END, INVERTED, FieldOrder, SortOrder
from shardwright.sharding.key_order import ENCODED_NULL, encode_value
from shardwright.wire.rawbson import spans
from tests.sampling import many
from tests.sharding import bson_values
from tests.sharding.bson_values import Value, int32, string

NAMES = ("a", "b")
PREFIXES: tuple[tuple[tuple[str, Value], ...], ...] = (
    (),
    (("p", int32(1)),),
    (("p", int32(0x0010_6100)), ("q", bson_values.double(1.5))),  # the value looks like the field "a"
    (("p", string("\x10a\0\0\0\0\0")),),
)


def order_of(sort: Mapping[str, Any]) -> FieldOrder | None:
    raw = bson.encode(sort)
    parsed = SortOrder.parse(raw)
    return None if parsed is None else FieldOrder.of(raw, parsed)


def document(number: int, fields: Mapping[str, Value], prefix: tuple[tuple[str, Value], ...]) -> bytes:
    return bson_values.document_of([("_id", int32(number)), *prefix, *fields.items()])


def agree_with_mongod(collection: Collection[Any], documents: list[bytes], sort: dict[str, int], *, hint: bool) -> None:
    collection.drop()
    collection.insert_many(map(RawBSONDocument, documents))
    index = list(sort.items())
    if hint:
        collection.create_index(index)
    found = collection.with_options(DEFAULT_RAW_BSON_OPTIONS).find(
        {}, {"$sortKey": {"$meta": "sortKey"}}, sort=index, hint=index if hint else None
    )
    with_sort_keys = [bytes(each.raw) for each in found]
    raw = bson.encode(sort)
    parsed = SortOrder.parse(raw)
    ours = FieldOrder.of(raw, parsed) if parsed is not None else None
    assert parsed is not None
    assert ours is not None
    expected, whole = parsed.keyed(with_sort_keys)
    keys, kept = ours.keyed(whole)
    assert keys == expected
    assert kept == whole
    assert keys == sorted(keys)


arrays = st.lists(bson_values.values, max_size=3).map(bson_values.array_of)
fields = st.fixed_dictionaries({}, optional={"a": bson_values.values | arrays, "b": bson_values.scalars})


@settings(max_examples=many(150, 40), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    contents=st.lists(st.tuples(fields, st.sampled_from(PREFIXES)), min_size=1, max_size=25),
    directions=st.tuples(st.sampled_from((1, -1)), st.sampled_from((1, -1))),
    is_compound=st.booleans(),
    hint=st.booleans(),
)
@example(
    contents=[
        ({"a": bson_values.array_of([])}, ()),
        ({}, ()),
        ({"a": bson_values.array_of([int32(3), string("x")])}, ()),
    ],
    directions=(-1, 1),
    is_compound=True,
    hint=False,
)
def test_keys_are_those_of_mongod(
    collection: Collection[Any],
    contents: list[tuple[dict[str, Value], tuple[tuple[str, Value], ...]]],
    directions: tuple[int, int],
    is_compound: bool,
    hint: bool,
) -> None:
    documents = [document(number, *content) for number, content in enumerate(contents)]
    sort = dict(zip(NAMES if is_compound else NAMES[:1], directions, strict=False))
    agree_with_mongod(collection, documents, sort, hint=hint)


fixed = st.sampled_from(
    (int32(1), int32(-1), int32(0x0061_1000), bson_values.int64(1 << 60), bson_values.double(0.5), string("a\0b"))
)
names = st.sampled_from(("_id", "a", "b", "c", "aa"))
layouts = st.lists(st.tuples(names, fixed), max_size=5, unique_by=lambda each: each[0])


@given(
    chunks=st.lists(st.lists(layouts, min_size=1, max_size=6), max_size=4),
    direction=st.sampled_from((1, -1)),
    name=names,
)
def test_documents_of_different_layouts_have_the_keys_of_their_fields(
    chunks: list[list[list[tuple[str, Value]]]], direction: int, name: str
) -> None:
    order = order_of({name: direction})
    assert order is not None
    for chunk in chunks:
        documents = [bson_values.document_of(fields) for fields in chunk]
        expected = [_encoded_field(document, name.encode()) for document in documents]
        if direction < 0:
            expected = [each.translate(INVERTED) for each in expected]
        assert order.keyed(documents)[0] == [each + END for each in expected]


def _encoded_field(raw: bytes, name: bytes) -> bytes:
    return next((encode_value(raw, span) for each, span in spans(raw) if each == name), ENCODED_NULL)


@pytest.mark.parametrize(
    "sort",
    [{"a.b": 1}, {"a": {"$meta": "textScore"}}, {"a": 1, "b": {"$meta": "indexKey"}}, {"": 1}, {"$a": 1}, {"a": "x"}],
)
def test_sorts_for_which_shards_add_their_keys(sort: dict[str, Any]) -> None:
    assert order_of(sort) is None


@pytest.mark.parametrize(
    ("projection", "is_kept"),
    [
        (None, True),
        ({}, True),
        ({"a": 1, "b": True}, True),
        ({"a": 1, "b": 1, "_id": 0}, True),
        ({"_id": 0}, True),
        ({"c": 0}, True),
        ({"a": 1}, False),
        ({"_id": 1}, False),
        ({"b": 0}, False),
        ({"a": 1, "b": 0}, False),
        ({"a": 1, "b": "$c"}, False),
        ({"a": 1, "b": {"$slice": 1}}, False),
        ({"a": 1, "b": 1, "c.d": 1}, False),
        ({"a": 1, "b": 2}, False),
        ({"a.x": 0}, False),
    ],
)
def test_projections_that_keep_the_fields_of_the_sort(projection: dict[str, Any] | None, is_kept: bool) -> None:
    order = order_of({"a": 1, "b": -1})
    assert order is not None
    assert order.is_kept_by(None if projection is None else bson.encode(projection)) is is_kept


def test_the_id_is_kept_unless_it_is_excluded() -> None:
    order = order_of({"_id": 1})
    assert order is not None
    assert [order.is_kept_by(bson.encode(each)) for each in ({"a": 1}, {"_id": 1}, {"a": 0})] == [True] * 3
    assert [order.is_kept_by(bson.encode(each)) for each in ({"a": 1, "_id": 0}, {"_id": 0})] == [False] * 2
