"""Whatever a filter matches on a real mongod lies where targeting looks for it."""

from typing import Any

import bson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pymongo.collection import Collection
from pymongo.errors import OperationFailure

from sharding.shard_key import ShardKeyPattern
from sharding.targeting.exact_key import exact_shard_key
from sharding.targeting.filters import key_ranges
from sharding.targeting.targets import target_ranges
from tests.sharding.targeting.filters_and_documents import PATTERNS, documents, filters, scalars
from tests.sharding.targeting.placements import SortedChunks
from wire.errors import CommandError

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


def with_ids(bodies: list[dict[str, Any]], ids: list[Any]) -> list[dict[str, Any]]:
    """The documents with an ``_id`` each, unique as mongod compares."""
    pattern = ShardKeyPattern.from_mapping({"_id": 1})
    unique = {pattern.key_bytes(bson.encode({"_id": each})): each for each in ids}
    return [{"_id": each, **body} for each, body in zip(unique.values(), bodies, strict=False)]


@pytest.mark.parametrize("collation", [None, COLLATION], ids=["simple", "collated"])
@pytest.mark.parametrize("key", PATTERNS, ids=str)
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    bodies=st.lists(documents, min_size=10, max_size=30),
    ids=st.lists(scalars, min_size=10, max_size=40),
    tried=st.lists(filters, min_size=15, max_size=25),
    data=st.data(),
)
def test_targeted_shards_include_every_match(
    collection: Collection,
    key: dict[str, Any],
    collation: dict[str, Any] | None,
    bodies: list[dict[str, Any]],
    ids: list[Any],
    tried: list[dict[str, Any]],
    data: st.DataObject,
) -> None:
    pattern = ShardKeyPattern.from_mapping(key)
    stored = insertable(pattern, with_ids(bodies, ids))
    collection.delete_many({})
    if stored:
        collection.insert_many(stored)
    keys = sorted({pattern.key_bytes_of_document(bson.encode(document)) for document in stored})
    splits = data.draw(st.lists(st.sampled_from(keys), max_size=4)) if keys else []
    chunks = SortedChunks(pattern, splits)
    for each in tried:
        try:
            matches = list(collection.find(each, collation=collation))
        except OperationFailure:
            continue  # mongod refuses the filter, and would on a shard
        raw = bson.encode(each)
        ranges = key_ranges(raw, pattern, simple_collation=collation is None)
        shards = target_ranges(ranges, chunks)
        exact = exact_shard_key(raw, pattern)
        assert shards
        for match in matches:
            found = pattern.key_bytes_of_document(bson.encode(match))
            assert any(low <= found < high for low, high in ranges.ranges), (each, match)
            assert chunks.shard_for_key(found) in shards, (each, match)
            if exact is not None and collation is None and pattern.hashed_field is None and not has_null(exact):
                assert pattern.key_bytes(exact) == found, (each, match)


def has_null(key: bytes) -> bool:
    """Whether an exact key has a null, which a filter also finds undefined with."""
    return None in bson.decode(key).values()
