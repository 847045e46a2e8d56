"""Shard keys, zones and chunks of a sharded target."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from bson import encode
from hypothesis import given
from hypothesis import strategies as st

from shardwright.sync.placing import split_points
from tests.sync.conftest import ends_of
from tests.sync.running import Client, Ends, contents
from tests.sync.writers import DATABASE

NS = f"{DATABASE}.orders"


@given(st.lists(st.integers(0, 30), max_size=200).map(sorted), st.integers(2, 20))
def test_split_points_are_distinct_bounds_of_chunks_that_have_documents(values: list[int], chunks: int) -> None:
    points = [each["a"] for each in split_points([{"a": value} for value in values], chunks)]
    assert len(points) < chunks
    assert all(one < other for one, other in pairwise(points))
    assert all(values[0] < each <= values[-1] for each in points)
    if len(set(values)) == len(values) >= chunks:
        assert len(points) == chunks - 1


def chunks_of(client: Client, namespace: str) -> list[dict[str, Any]]:
    entry = client.config["collections"].find_one({"_id": namespace})
    assert entry is not None
    return list(client.config.chunks.find({"uuid": entry["uuid"]}))


def zones_of(client: Client) -> list[bytes]:
    found = client.config.tags.find({"ns": NS})
    return sorted(encode({"": [each["min"], each["max"], each["tag"]]}) for each in found)


def test_a_collection_of_a_replica_set_is_sharded_and_divided_before_the_copy(to_cluster: Ends) -> None:
    ends = to_cluster
    ends.source[DATABASE].orders.insert_many([{"customer": each % 500, "n": each} for each in range(3000)])
    ends.source[DATABASE].other.insert_many([{"_id": each} for each in range(10)])
    shard = f'{NS}={{"customer": 1}}'
    with ends.syncing("--shard", shard) as process:
        process.wait_for(lambda progress: progress.get("collectionCopy", {}).get("copiedDocuments", 0) == 3010)
        chunks = chunks_of(ends.target, NS)
        assert len(chunks) >= 8
        assert len({each["shard"] for each in chunks}) == 2
        assert ends.target.config["collections"].find_one({"_id": f"{DATABASE}.other"}) is None
        # Documents get another shard key at the target while it is no key at the source.
        ends.source[DATABASE].orders.update_many({"n": {"$lt": 50}}, {"$inc": {"customer": 400}})
        ends.source[DATABASE].orders.delete_many({"n": {"$gt": 2950}})
        process.wait_followed(ends.source)
        found, wanted = contents(ends.target), contents(ends.source)
        assert found[NS][0] == wanted[NS][0]
        process.wait_for(lambda progress: progress["verification"]["complete"] and progress["verification"]["equal"])


def test_documents_with_the_same_id_on_different_shards_are_refused(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    with ends_of(request, "cluster-set", tmp_path) as ends:
        first, second = ends.source.config.shards.distinct("_id")
        ends.source.admin.command("enableSharding", DATABASE, primaryShard=first)
        ends.source.admin.command("shardCollection", NS, key={"customer": 1})
        ends.source.admin.command("split", NS, middle={"customer": 50})
        ends.source.admin.command("moveChunk", NS, find={"customer": 50}, to=second)
        ends.source[DATABASE].orders.insert_many([{"_id": each, "customer": each} for each in range(100)])
        ends.source[DATABASE].orders.insert_one({"_id": 7, "customer": 70})
        done = ends.run()
        assert done.status == 1
        assert f"{NS} has several documents with the _id 7 on different shards" in done.errors
        assert DATABASE not in ends.target.list_database_names()
        ends.source[DATABASE].orders.delete_one({"_id": 7, "customer": 70})
        done = ends.run()
        assert done.status == 0, done.errors


def test_zones_are_carried_and_followed(from_genuine: Ends) -> None:
    ends = from_genuine
    for client in (ends.source, ends.target):
        for name, shard in zip(("north", "south"), client.config.shards.distinct("_id"), strict=True):
            client.admin.command("addShardToZone", shard, zone=name)
    try:
        client = ends.source
        client.admin.command("enableSharding", DATABASE)
        client[DATABASE].orders.create_index([("region", 1), ("n", 1)])
        client.admin.command("shardCollection", NS, key={"region": 1, "n": 1})

        def zone(low: str, high: str, name: str | None) -> None:
            bounds = {"min": {"region": low, "n": 0}, "max": {"region": high, "n": 0}}
            client.admin.command({"updateZoneKeyRange": NS, **bounds, "zone": name})

        zone("a", "m", "north")
        zone("m", "z", "south")
        client[DATABASE].orders.insert_many([{"region": each, "n": 1} for each in "bcdnop"])
        with ends.syncing() as process:
            process.wait_followed(client)
            assert zones_of(ends.target) == zones_of(client)
            assert len(chunks_of(ends.target, NS)) >= 3
            zone("a", "m", None)
            zone("b", "m", "south")
            process.wait_for(lambda _: zones_of(ends.target) == zones_of(client))
    finally:
        for client in (ends.source, ends.target):
            for each in list(client.config.tags.find({"ns": NS})):
                client.admin.command({"updateZoneKeyRange": NS, "min": each["min"], "max": each["max"], "zone": None})
            for name, shard in zip(("north", "south"), client.config.shards.distinct("_id"), strict=True):
                client.admin.command("removeShardFromZone", shard, zone=name)
