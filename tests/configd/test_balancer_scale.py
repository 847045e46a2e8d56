"""A round over a million chunks: it has to look at few of them."""

from itertools import pairwise
from pathlib import Path

import pytest
from bson.binary import Binary
from bson.max_key import MaxKey
from bson.min_key import MinKey
from bson.objectid import ObjectId
from bson.timestamp import Timestamp

from bench.memory import resident_bytes
from bench.targets import cpu_seconds
from tests.configd.balancing import SizedShard
from tests.configd.catalog_user import CatalogUser
from tests.configd.fake_shard import serving
from tests.shardd.mini_cluster import replica_set

COLLECTIONS = 200
CHUNKS = 5_000
CPU_SECONDS_MAX = 5.0
"""Of the config server's two processes. The most, for a round by count with zones, was 1.6 s, with 40 and 405 MB."""


@pytest.mark.exhaustive
def test_a_round_over_a_million_chunks(tmp_path: Path) -> None:
    """Zones, by data size and by count, and with a draining shard; there is work to do in each case."""
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

        member = running.members[0]
        processes = {"configd": member.daemon, "mongod": member.mongod}

        def seconds() -> float:
            """The CPU time that the processes of the config server need for a round; shows the memory that they use."""
            before = {name: cpu_seconds(process.pid) for name, process in processes.items()}
            decisions = client.admin.command("_configsvrBalancerExplain", 1)["decisions"]
            assert len(decisions) >= 1
            taken = {name: cpu_seconds(process.pid) - before[name] for name, process in processes.items()}
            for name, process in processes.items():
                print(f"{name}: {taken[name]:.2f} s of CPU, {resident_bytes(process.pid) >> 20} MB")
            return sum(taken.values())

        assert seconds() < CPU_SECONDS_MAX
        client.config.shards.update_one({"_id": "d"}, {"$set": {"draining": True}})
        assert seconds() < CPU_SECONDS_MAX
        client.config.shards.update_one({"_id": "d"}, {"$unset": {"draining": True}})
        catalog.run({"_configsvrAddShardToZone": "a", "zone": "z"})
        for number in range(COLLECTIONS):
            zone = {"min": {"x": 100}, "max": {"x": 200}, "zone": "z"}
            catalog.run({"_configsvrUpdateZoneKeyRange": f"large.c{number}", **zone})
        assert seconds() < CPU_SECONDS_MAX
        client.config.settings.update_one({"_id": "balancer"}, {"$set": {"balancerPolicy": "chunkCount"}})
        assert seconds() < CPU_SECONDS_MAX


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
