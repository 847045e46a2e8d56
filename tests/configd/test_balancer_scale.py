"""A round over a million chunks: it has to look at few of them."""

import time
from itertools import pairwise
from pathlib import Path

import pytest
from bson.binary import Binary
from bson.max_key import MaxKey
from bson.min_key import MinKey
from bson.objectid import ObjectId
from bson.timestamp import Timestamp

from tests.configd.balancing import SizedShard
from tests.configd.catalog_user import CatalogUser
from tests.configd.fake_shard import serving
from tests.shardd.mini_cluster import replica_set

COLLECTIONS = 200
CHUNKS = 5_000
SECONDS_MAX = 30.0
"""For a slow machine; on a quiet one, each of these rounds takes less than 5 s."""


@pytest.mark.exhaustive
def test_a_round_over_a_million_chunks(tmp_path: Path) -> None:
    """With zones, by data size and by count, and with a shard to drain, in each of which there is something to do."""
    names = ["a", "b", "c", "d"]
    with (
        replica_set(tmp_path, daemon="configd") as running,
        serving(SizedShard, *names) as shards,
        running.members[0].client() as client,
        running.members[0].mongod_client() as mongod,
    ):
        catalog = CatalogUser(client)
        for shard in shards.values():
            catalog.run({"_configsvrAddShard": shard.connection_string})
        for number in range(COLLECTIONS):
            sharded = catalog.shard_collection(f"large.c{number}", [(MinKey(), 0, "a"), (0, MaxKey(), "b")])
            shards["a"].sizes[sharded.namespace] = 1 << 30
            mongod.config.chunks.delete_many({"uuid": sharded.uuid})
            mongod.config.chunks.insert_many(_chunks(sharded.uuid, names), ordered=False)
        assert client.config.chunks.estimated_document_count() == COLLECTIONS * CHUNKS

        def seconds() -> float:
            started = time.perf_counter()
            decisions = client.admin.command("_configsvrBalancerExplain", 1)["decisions"]
            assert len(decisions) >= 1
            taken = time.perf_counter() - started
            print(f"{taken:.2f} s")
            return taken

        assert seconds() < SECONDS_MAX
        client.config.shards.update_one({"_id": "d"}, {"$set": {"draining": True}})
        assert seconds() < SECONDS_MAX
        client.config.shards.update_one({"_id": "d"}, {"$unset": {"draining": True}})
        catalog.run({"_configsvrAddShardToZone": "a", "zone": "z"})
        for number in range(COLLECTIONS):
            zone = {"min": {"x": 100}, "max": {"x": 200}, "zone": "z"}
            catalog.run({"_configsvrUpdateZoneKeyRange": f"large.c{number}", **zone})
        assert seconds() < SECONDS_MAX
        client.config.settings.update_one({"_id": "balancer"}, {"$set": {"balancerPolicy": "chunkCount"}})
        assert seconds() < SECONDS_MAX


def _chunks(uuid: Binary, names: list[str]) -> list[dict[str, object]]:
    bounds: list[object] = [MinKey(), *range(CHUNKS - 1), MaxKey()]
    return [
        {
            "_id": ObjectId(),
            "uuid": uuid,
            "min": {"x": low},
            "max": {"x": high},
            "shard": names[number * len(names) // CHUNKS],
            "lastmod": Timestamp(1, number),
            "history": [{"validAfter": Timestamp(1, 1), "shard": "a"}],
        }
        for number, (low, high) in enumerate(pairwise(bounds))
    ]
