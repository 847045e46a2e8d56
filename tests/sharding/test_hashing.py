"""Hashed shard key values equal mongod's."""

from typing import Any

import pytest
from bson.raw_bson import RawBSONDocument
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pymongo.collection import Collection

from shardwright.sharding.hashing import equal_values_hashes, hash_value
from shardwright.sharding.key_order import encode_value
from shardwright.wire import rawbson
from tests.sampling import many
from tests.sharding import bson_values
from tests.sharding.bson_values import Value, decimal128, document_of, double, int32, int64, wrapped

NUMBERS = [
    *(double(value) for value in bson_values.EDGE_DOUBLES),
    *(decimal128(value) for value in bson_values.EDGE_DECIMALS),
    *(int64(value) for value in bson_values.EDGE_INTEGERS if -(2**63) <= value < 2**63),
]


@settings(max_examples=many(60, 20), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(values=st.lists(bson_values.values, min_size=1, max_size=60))
@example(values=NUMBERS)
def test_hash_equals_to_hashed_index_key(collection: Collection[dict[str, Any]], values: list[Value]) -> None:
    collection.delete_many({})
    collection.insert_many(
        RawBSONDocument(document_of([("_id", int32(position)), ("v", value)])) for position, value in enumerate(values)
    )
    pipeline: list[dict[str, Any]] = [{"$sort": {"_id": 1}}, {"$project": {"hash": {"$toHashedIndexKey": "$v"}}}]
    theirs = [found["hash"] for found in collection.aggregate(pipeline)]
    assert [hash_value(*wrapped(value)) for value in values] == theirs


@settings(max_examples=many(200, 60), deadline=None)
@given(values=st.lists(bson_values.numbers, min_size=2, max_size=30))
@example(values=NUMBERS)
def test_equal_numbers_are_found_by_each_other(values: list[Value]) -> None:
    for value in values:
        candidates = equal_values_hashes(*wrapped(value))
        assert candidates is not None
        for other in values:
            if encode_value(*wrapped(other)) == encode_value(*wrapped(value)):
                assert hash_value(*wrapped(other)) in candidates


@pytest.mark.parametrize(("number", "places"), [(double(1.0), 1), (double(1.5), 2), (decimal128("-1.5"), 2)])
def test_only_fractions_have_two_hashes(number: Value, places: int) -> None:
    assert len(equal_values_hashes(*wrapped(number)) or ()) == places
    nested = wrapped((rawbson.OBJECT, document_of([("x", number)])))
    assert (equal_values_hashes(*nested) is None) == (places > 1)
