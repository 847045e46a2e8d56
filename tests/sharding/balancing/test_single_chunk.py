"""The target of a collection's hot end."""

from dataclasses import replace

import bson
import pytest
from bson.max_key import MaxKey

from shardwright.sharding.balancing.cluster_state import (
    Answer,
    Candidate,
    ClusterState,
    CollectionState,
    Policy,
    ShardState,
    ZoneMap,
)
from shardwright.sharding.balancing.policy import place_offered
from shardwright.sharding.chunks import ChunkRange
from tests.sharding.balancing.simulation import NAMESPACE, PATTERN, drive

MB = 1 << 20
OFFERED = Candidate(ChunkRange.of(PATTERN, bson.encode({"x": 90}), bson.encode({"x": MaxKey()})), "a")
SHARDS = (ShardState("a", frozenset({"z"})), ShardState("b", frozenset({"z"})), ShardState("c"))
COLLECTION = CollectionState(NAMESPACE, ZoneMap(PATTERN), {"a": 100 * MB, "b": 50 * MB, "c": 20 * MB})
ZONE = ZoneMap(PATTERN, [(bson.encode({"x": 50}), bson.encode({"x": MaxKey()}), "z")])
COUNTS = {"a": 5, "b": 1, "c": 7}


@pytest.mark.parametrize(
    ("cluster", "collection", "recipient"),
    [
        (ClusterState(SHARDS), COLLECTION, "c"),
        (ClusterState(SHARDS, Policy.CHUNK_COUNT), COLLECTION, "b"),
        (ClusterState(SHARDS), replace(COLLECTION, zones=ZONE), "b"),
        (ClusterState(SHARDS), replace(COLLECTION, why_skipped="noBalance"), None),
        (ClusterState(SHARDS), replace(COLLECTION, sizes={"a": 1, "b": 2, "c": 3}), None),
        (ClusterState((*SHARDS[:2], replace(SHARDS[2], is_draining=True))), COLLECTION, "b"),
        (ClusterState((*SHARDS[:2], replace(SHARDS[2], is_available=False))), COLLECTION, "b"),
        (ClusterState(SHARDS[:1]), COLLECTION, None),
    ],
)
def test_it_goes_to_the_shard_with_the_least_data(
    cluster: ClusterState, collection: CollectionState, recipient: str | None
) -> None:
    move = drive(place_offered(cluster, collection, OFFERED), lambda question: Answer(counts=COUNTS))
    assert (None if move is None else (move.donor, move.recipient)) == (None if recipient is None else ("a", recipient))
