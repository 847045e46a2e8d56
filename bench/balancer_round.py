"""Duration and memory of a balancer round in a cluster of 200 collections and a million chunks.

The chunks are written directly into the catalog, as splits and moves would have left them. A real round runs over the
cluster while it is even. Decisions about zones that are violated everywhere are explained, but not executed.
"""

import http.client
import re
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from bson.binary import Binary, UuidRepresentation
from bson.codec_options import CodecOptions
from bson.max_key import MaxKey
from bson.min_key import MinKey
from bson.objectid import ObjectId
from bson.timestamp import Timestamp
from pymongo import MongoClient
from pymongo.errors import PyMongoError

from bench.cluster import OurCluster, running_cluster
from bench.loadgen import BenchError
from bench.memory import PeakMemory
from bench.targets import cpu_seconds
from shardwright.deploy.mongod import connect

COLLECTIONS: Final = 200
SHARDS: Final = 4

_CHUNKS: Final = 1_000_000
_CHUNKS_QUICK: Final = 20_000
_DATABASE: Final = "rounds"
_ZONE: Final = "z"
_COMMAND_SECONDS: Final = 600.0
_ROUND_SECONDS_MAX: Final = 600.0
_POLL_SECONDS: Final = 0.05
_ROUND_SECONDS: Final = re.compile(r"^\S*balancer_round_seconds(?:\{\S*\})? (\S+)$", re.MULTILINE)
_CONFIGD: Final = "config.0.configd"

_Client = MongoClient[dict[str, Any]]


def measure_balancer_round(mongod: str, directory: Path, *, cache_gb: float, is_quick: bool) -> list[dict[str, Any]]:
    """Make the measurements and print them."""
    chunks = _CHUNKS_QUICK if is_quick else _CHUNKS
    print(f"\nrounds: creating {COLLECTIONS} collections with {chunks:,} chunks on {SHARDS} shards", flush=True)
    try:
        with (
            running_cluster(mongod, directory / "rounds", cache_gb=cache_gb, shards=SHARDS) as cluster,
            connect(cluster.address("router.0"), _COMMAND_SECONDS) as router,
            connect(cluster.address("config.0.mongod"), _COMMAND_SECONDS) as config,
            connect(cluster.address(_CONFIGD), _COMMAND_SECONDS) as configd,
        ):
            _create_collections(router, config, chunks // COLLECTIONS)
            results = []
            for policy in ("dataSize", "chunkCount"):
                settings = {"$set": {"balancerPolicy": policy}}
                router.config.settings.update_one({"_id": "balancer"}, settings, upsert=True)
                results.append(_measured(cluster, f"a round by {policy}", lambda: _run_round(cluster, router)))
            _make_zones(router)
            results.append(_measured(cluster, "decisions about zones", lambda: _explain(configd)))
            return results
    except PyMongoError as error:
        raise BenchError(f"the cluster refuses something: {error}") from error


def _measured(cluster: OurCluster, what: str, step: Callable[[], float]) -> dict[str, Any]:
    pids = {"configd": cluster.pid(_CONFIGD), "mongod": cluster.pid("config.0.mongod")}
    before = {role: cpu_seconds(pid) for role, pid in pids.items()}
    with PeakMemory(pids) as memory:
        seconds = step()
    cpu = {role: cpu_seconds(pid) - before[role] for role, pid in pids.items()}
    print(
        f"  {what:24} {seconds:6.2f} s   CPU s: {', '.join(f'{role} {each:.2f}' for role, each in cpu.items())}"
        f"   memory: {', '.join(f'{role} {each >> 20} MiB' for role, each in memory.peak.items())}",
        flush=True,
    )
    return {"what": what, "seconds": seconds, "cpu_seconds": cpu, "memory_bytes": memory.peak}


def _run_round(cluster: OurCluster, router: _Client) -> float:
    """Run a round of the balancer, and return the duration that it reports."""
    number = router.admin.command("balancerStatus")["numBalancerRounds"]
    router.admin.command("balancerStart")
    try:
        deadline = time.monotonic() + _ROUND_SECONDS_MAX
        while (status := router.admin.command("balancerStatus"))["numBalancerRounds"] == number or (
            status["inBalancerRound"]
        ):
            if time.monotonic() > deadline:
                raise BenchError(f"a round has not ended within {_ROUND_SECONDS_MAX:.0f} s")
            time.sleep(_POLL_SECONDS)
    finally:
        router.admin.command("balancerStop")
    return _seconds_of_last_round(cluster.document["metrics"][_CONFIGD])


def _seconds_of_last_round(address: str) -> float:
    connection = http.client.HTTPConnection(address)
    try:
        connection.request("GET", "/metrics")
        found = _ROUND_SECONDS.search(connection.getresponse().read().decode())
    finally:
        connection.close()
    if found is None:
        raise BenchError("the config daemon does not tell how long a round took")
    return float(found[1])


def _explain(configd: _Client) -> float:
    """Explain the moves of a round, and return how long that took."""
    began = time.perf_counter()
    decisions = configd.admin.command("_configsvrBalancerExplain", 1)["decisions"]
    if not decisions:
        raise BenchError("the balancer has nothing to do, though chunks lie outside of their zones")
    return time.perf_counter() - began


def _create_collections(router: _Client, config: _Client, chunks: int) -> None:
    catalog = config.get_database("config", codec_options=CodecOptions(uuid_representation=UuidRepresentation.STANDARD))
    shards = [shard["_id"] for shard in catalog.shards.find().sort("_id")]
    for number in range(COLLECTIONS):
        namespace = f"{_DATABASE}.c{number}"
        router.admin.command("shardCollection", namespace, key={"x": 1})
        collection = catalog.collections.find_one({"_id": namespace})
        assert collection is not None
        catalog.chunks.delete_many({"uuid": collection["uuid"]})
        catalog.chunks.insert_many(_chunks(Binary.from_uuid(collection["uuid"]), shards, chunks), ordered=False)


def _chunks(uuid: Binary, shards: list[str], count: int) -> Iterator[dict[str, Any]]:
    """Yield chunks of one collection: equally many on all shards."""
    bounds = [MinKey(), *range(count - 1), MaxKey()]
    for number, (low, high) in enumerate(pairwise(bounds)):
        shard = shards[number * len(shards) // count]
        yield {
            "_id": ObjectId(),
            "uuid": uuid,
            "min": {"x": low},
            "max": {"x": high},
            "shard": shard,
            "lastmod": Timestamp(2, number),
            "history": [{"validAfter": Timestamp(1, 1), "shard": shard}],
        }


def _make_zones(router: _Client) -> None:
    """Assign a range of each collection to a zone of another shard."""
    router.admin.command("addShardToZone", f"shard{SHARDS - 1}", zone=_ZONE)
    for number in range(COLLECTIONS):
        zone = {"min": {"x": 10}, "max": {"x": 20}, "zone": _ZONE}
        router.admin.command({"updateZoneKeyRange": f"{_DATABASE}.c{number}", **zone})
