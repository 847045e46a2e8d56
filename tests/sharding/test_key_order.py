"""The bytes of values compare as mongod sorts the values.

It is asked to sort by an index, through which it also reads chunks. (Its sort in memory compares only the lengths of
the namespaces of two DBPointers.)
"""

from typing import Any

import bson
import pytest
from bson.decimal128 import Decimal128
from bson.int64 import Int64
from bson.raw_bson import RawBSONDocument
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pymongo.collection import Collection

from shardwright.sharding.key_order import AFTER, encode_key, encode_value
from shardwright.wire import rawbson
from tests.sampling import many
from tests.sharding import bson_values
from tests.sharding.bson_values import Value, int32, wrapped


def encoded(value: Value) -> bytes:
    return encode_value(*wrapped(value))


def sorted_by_index(collection: Collection[dict[str, Any]], order: list[tuple[str, int]]) -> list[int]:
    index = collection.create_index(order)
    return [found["_id"] for found in collection.find({}, {"_id": 1}).sort(order).hint(index)]


def agree_with_mongod(collection: Collection[dict[str, Any]], values: list[Value]) -> None:
    """Sort by value and then by ``_id`` in both directions: a tie that only one side sees shows in one of them."""
    collection.delete_many({})
    documents = [
        # Inside an object, an array is compared as a whole, not by its smallest element.
        bson_values.document_of([("_id", int32(position)), ("v", (rawbson.OBJECT, rawbson.wrap_value(*value, b"x")))])
        for position, value in enumerate(values)
    ]
    collection.insert_many(map(RawBSONDocument, documents))
    for direction in (1, -1):
        theirs = sorted_by_index(collection, [("v", 1), ("_id", direction)])
        ours = sorted(range(len(values)), key=lambda position: (encoded(values[position]), direction * position))
        assert ours == theirs


@settings(max_examples=many(100, 40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(values=st.lists(bson_values.values, min_size=2, max_size=50))
def test_values_sort_as_in_mongod(collection: Collection[dict[str, Any]], values: list[Value]) -> None:
    agree_with_mongod(collection, values)


@settings(max_examples=many(40, 15), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(values=st.lists(bson_values.numbers, min_size=2, max_size=80))
@example(
    values=[
        *(bson_values.double(value) for value in bson_values.EDGE_DOUBLES),
        *(bson_values.decimal128(value) for value in bson_values.EDGE_DECIMALS),
        *(bson_values.int64(value) for value in bson_values.EDGE_INTEGERS if -(2**63) <= value < 2**63),
    ]
)
def test_numbers_of_all_types_sort_as_in_mongod(collection: Collection[dict[str, Any]], values: list[Value]) -> None:
    agree_with_mongod(collection, values)


@settings(max_examples=many(100, 40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    keys=st.lists(st.tuples(*[bson_values.scalars | st.just(bson_values.string("a\0"))] * 2), min_size=2, max_size=50)
)
def test_compound_keys_sort_as_in_mongod(
    collection: Collection[dict[str, Any]], keys: list[tuple[Value, Value]]
) -> None:
    collection.delete_many({})
    documents = [
        bson_values.document_of([("_id", int32(position)), ("a", first), ("b", second)])
        for position, (first, second) in enumerate(keys)
    ]
    collection.insert_many(map(RawBSONDocument, documents))
    theirs = sorted_by_index(collection, [("a", 1), ("b", 1), ("_id", 1)])

    def key_bytes(position: int) -> tuple[bytes, int]:
        return encode_key(bson_values.document_of(list(zip("ab", keys[position], strict=True)))), position

    assert sorted(range(len(keys)), key=key_bytes) == theirs


@pytest.mark.parametrize(
    "equal",
    [
        [1, 1.0, Int64(1), Decimal128("1"), Decimal128("1.000")],
        [0, -0.0, Decimal128("-0"), Decimal128("0E+99")],
        [float("nan"), Decimal128("NaN"), Decimal128("-sNaN")],
        [float("inf"), Decimal128("Infinity")],
        [Int64(2**63 - 1), Decimal128(str(2**63 - 1))],
        [-0.5, Decimal128("-0.50")],
    ],
)
def test_equal_numbers_have_equal_bytes(equal: list[object]) -> None:
    assert len({encode_key(bson.encode({"v": value})) for value in equal}) == 1


@settings(max_examples=many(300, 100), deadline=None)
@given(first=bson_values.values, second=bson_values.values, further=bson_values.scalars)
def test_no_other_value_lies_between_a_prefix_and_its_end(first: Value, second: Value, further: Value) -> None:
    low, other = encoded(first), encoded(second)
    inside = low <= other < low + AFTER
    assert inside == (low == other)
    assert low <= low + encoded(further) < low + AFTER
    if other > low:
        assert low + AFTER + encoded(further) < other


def test_malformed_nested_values_are_refused() -> None:
    code_length_past_the_end = b"\x0e\0\0\0" + b"\x7f\0\0\0" + b"\0" + rawbson.EMPTY_DOCUMENT
    document = b"\x0f" + b"v\0" + code_length_past_the_end
    with pytest.raises(rawbson.InvalidBSONError):
        encode_value(document, (rawbson.CODE_WITH_SCOPE, 0, 3, len(document)))
