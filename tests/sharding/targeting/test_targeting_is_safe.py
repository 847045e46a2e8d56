"""Every document that a filter matches on a real mongod is on a shard that the filter targets."""

import itertools
from random import Random
from typing import Any

import bson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pymongo.collection import Collection
from pymongo.errors import OperationFailure

from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.sharding.targeting.filters import exact_shard_key, key_ranges
from shardwright.sharding.targeting.targets import target_filter, target_ranges
from shardwright.wire.errors import CommandError
from tests.sampling import many
from tests.sharding.targeting.filters_and_documents import EXPRESSIONS, PATTERNS, Palette
from tests.sharding.targeting.placements import split_at

COLLATION = {"locale": "en", "strength": 1}


def insertable(pattern: ShardKeyPattern, documents: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The documents that the shard key allows."""
    kept = []
    for document in documents:
        try:
            pattern.extract_from_document(bson.encode(document))
        except CommandError:
            continue
        kept.append(document)
    return kept


def with_ids(palette: Palette, bodies: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The documents with an ``_id`` each: values of the palette as far as they are unique, then strings."""
    pattern = ShardKeyPattern.from_mapping({"_id": 1})
    ids = [palette.scalar() for _ in bodies]
    unique = {pattern.key_bytes(bson.encode({"_id": each})): each for each in ids}
    more = (f"id {number}" for number in range(len(bodies)))
    return [{"_id": each, **body} for each, body in zip([*unique.values(), *more], bodies, strict=False)]


@pytest.mark.parametrize("collation", [None, COLLATION], ids=["simple", "collated"])
@pytest.mark.parametrize("key", PATTERNS, ids=str)
@settings(max_examples=many(20, 6), deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32))
def test_targeted_shards_include_every_match(
    collection: Collection[dict[str, Any]], key: dict[str, Any], collation: dict[str, Any] | None, seed: int
) -> None:
    random = Random(seed)
    palette = Palette(random)
    pattern = ShardKeyPattern.from_mapping(key)
    stored = insertable(pattern, with_ids(palette, [palette.document() for _ in range(40)]))
    collection.delete_many({})
    collection.insert_many(stored)
    keys = [pattern.extract_from_document(bson.encode(document)) for document in stored]
    splits = [key for key in keys if pattern.is_valid_split_point(key)]
    table = split_at(pattern, random.sample(splits, min(4, len(splits))))
    for _ in range(60):
        tried = palette.filter()
        try:
            matches = list(collection.find(tried, collation=collation))
        except OperationFailure:
            continue  # mongod refuses the filter, and would on a shard
        raw = bson.encode(tried)
        ranges = key_ranges(raw, pattern, simple_collation=collation is None)
        shards = target_filter(raw, table, simple_collation=collation is None)
        assert shards
        assert shards == target_ranges(ranges, table), tried
        for match in matches:
            found = pattern.key_bytes_of_document(bson.encode(match))
            assert any(low <= found < high for low, high in ranges.ranges), (tried, match)
            assert table.shard_for_key(found) in shards, (tried, match)


@pytest.mark.parametrize("options", ["", "i", "m", "s", "x", "mx"])
def test_a_prefix_includes_every_string_that_its_expression_matches(
    collection: Collection[dict[str, Any]], options: str
) -> None:
    pattern = ShardKeyPattern.from_mapping({"a": 1})
    characters = ("a", "A", "b", "|", " ", "\n", "\u00e9", "\u00ea", ".", "#", "\0")
    strings = ["".join(some) for length in range(4) for some in itertools.product(characters, repeat=length)]
    collection.delete_many({})
    collection.insert_many([{"a": each} for each in strings])
    for expression in EXPRESSIONS:
        tried = {"a": {"$regex": expression, "$options": options}}
        ranges = key_ranges(bson.encode(tried), pattern).ranges
        try:
            matches = list(collection.find(tried))
        except OperationFailure:
            continue  # not a valid expression with these options
        for match in matches:
            found = pattern.key_bytes_of_document(bson.encode(match))
            assert any(low <= found < high for low, high in ranges), (tried, match)


@pytest.mark.parametrize("key", [key for key in PATTERNS if "hashed" not in key.values()], ids=str)
@settings(max_examples=many(100, 40), deadline=None)
@given(seed=st.integers(0, 2**32))
def test_an_exact_key_lies_in_the_ranges_of_its_filter(key: dict[str, Any], seed: int) -> None:
    palette = Palette(Random(seed))
    pattern = ShardKeyPattern.from_mapping(key)
    for _ in range(10):
        tried = bson.encode(palette.filter())
        exact = exact_shard_key(tried, pattern)
        if exact is not None:
            ranges = key_ranges(tried, pattern).ranges
            found = pattern.key_bytes(exact)
            assert not ranges or any(low <= found < high for low, high in ranges)
