"""Refining a shard key: no document changes its place, whatever the bounds and the documents."""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import bson
import pytest
from bson.max_key import MaxKey
from bson.min_key import MinKey
from bson.objectid import ObjectId
from bson.timestamp import Timestamp
from hypothesis import given
from hypothesis import strategies as st

from shardwright.sharding.chunk_changes import extend_bound, is_extended_by, refined_chunk, refined_placement
from shardwright.sharding.chunks import Chunk
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.routing_table import RoutingTable, ShardedCollection
from shardwright.sharding.shard_key import ShardKeyPattern
from tests.sharding.chunk_worlds import COLLECTION, chunk

NEW_EPOCH, NEW_TIME = ObjectId("6b003c51f6889f2ffd8ef299"), Timestamp(1001, 1)
OLD = ShardKeyPattern.from_mapping({"x": 1})
NEW = ShardKeyPattern.from_mapping({"x": 1, "y.z": 1, "w": "hashed"})

values = st.one_of(
    st.integers(-9, 9),
    st.sampled_from([MinKey(), MaxKey(), None, "", "a", 1.5, True, ObjectId(b"\0" * 12)]),
)


def pattern(**fields: object) -> ShardKeyPattern:
    return ShardKeyPattern.from_mapping(fields)


def table(collection: ShardedCollection, chunks: list[Chunk]) -> RoutingTable:
    return RoutingTable.build(collection, [each.placement for each in chunks])


def refined(chunks: list[Chunk]) -> list[Chunk]:
    """Some of the chunks have the bounds of the new key already."""
    half = [refined_chunk(each, NEW) if n % 2 else each for n, each in enumerate(chunks)]
    return [refined_chunk(each, NEW) for each in half]


@given(
    points=st.sets(st.integers(-9, 9), max_size=6),
    documents=st.lists(st.fixed_dictionaries({"x": values, "y": values, "w": values}), max_size=20),
)
def test_every_document_stays_on_its_shard(points: set[int], documents: list[Mapping[str, Any]]) -> None:
    bounds = [MinKey(), *sorted(points), MaxKey()]
    chunks = [chunk(low, high, f"s{n % 3}", 1, n) for n, (low, high) in enumerate(pairwise(bounds))]
    before = table(COLLECTION, chunks)
    collection = ShardedCollection(Namespace("d", "c"), COLLECTION.uuid, NEW_EPOCH, NEW_TIME, NEW)
    after = table(collection, refined(chunks))
    assert after.chunk_count == before.chunk_count
    assert after.collection_version.packed == before.collection_version.packed
    for document in ({**each, "y": {"z": each["y"]}} for each in documents):
        raw = bson.encode(document)
        owners = [each.shard_for_key(each.key_pattern.key_bytes_of_document(raw)) for each in (before, after)]
        assert owners[0] == owners[1]


@pytest.mark.parametrize(
    ("bound", "extended"),
    [
        ({"x": 5}, {"x": 5, "y.z": MinKey(), "w": MinKey()}),
        ({"x": MinKey()}, {"x": MinKey(), "y.z": MinKey(), "w": MinKey()}),
        ({"x": MaxKey()}, {"x": MaxKey(), "y.z": MaxKey(), "w": MaxKey()}),
        ({"x": 5, "y.z": MaxKey()}, {"x": 5, "y.z": MaxKey(), "w": MinKey()}),
        ({"x": 5, "y.z": 1, "w": 7}, {"x": 5, "y.z": 1, "w": 7}),
        ({"x": MaxKey(), "y.z": MinKey(), "w": MinKey()}, {"x": MaxKey(), "y.z": MinKey(), "w": MinKey()}),
    ],
)
def test_only_the_end_of_the_key_space_is_extended_with_max_key(
    bound: Mapping[str, Any], extended: Mapping[str, Any]
) -> None:
    assert bson.decode(extend_bound(bson.encode(bound), NEW)) == extended


def test_routing_and_the_catalog_see_the_same_chunk() -> None:
    before = chunk(0, MaxKey(), "s1", 4, 2)
    after = refined_chunk(before, NEW)
    assert after.placement == refined_placement(before.placement, NEW)
    assert (after.version, after.history, after.id) == (before.version, before.history, before.id)


@pytest.mark.parametrize(
    ("old", "new", "is_extension"),
    [
        (OLD, NEW, True),
        (OLD, OLD, True),
        (NEW, OLD, False),
        (OLD, pattern(y=1, x=1), False),
        (OLD, pattern(x="hashed", y=1), False),
        (pattern(x="hashed"), pattern(x="hashed", y=1), True),
    ],
)
def test_a_key_is_extended_only_at_its_end(old: ShardKeyPattern, new: ShardKeyPattern, is_extension: bool) -> None:
    assert is_extended_by(old, new) is is_extension
