"""Defragmentation of a collection by a config daemon, with shards that merge and move chunks in the catalog."""

import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from bson.int64 import Int64
from bson.max_key import MaxKey
from bson.min_key import MinKey
from pymongo import MongoClient

from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.request import Request
from tests.configd.balancing import SizedShard
from tests.configd.catalog_user import CatalogUser, Sharded
from tests.configd.fake_shard import serving
from tests.integration.waiting import eventually
from tests.shardd.mini_cluster import Set, replica_set

MB = 1 << 20
NAMESPACE = "db.fragments"

Bounds = list[tuple[Any, Any, str]]


class ChangingShard(SizedShard):
    """A shard that has documents of 1 MB with known keys, and carries out merges and moves in the catalog.

    Attributes:
        catalog: where it does that.
        sharded: the collection.
        keys: the keys of all documents, on whatever shard.
    """

    catalog: CatalogUser
    sharded: Sharded
    keys: list[int]

    def answer(self, request: Request) -> Mapping[str, Any]:
        """The reply to a command, without ``ok``."""
        document = request.document
        if request.name == "dataSize":
            low, high, limit = document["min"]["x"], document["max"]["x"], document["maxSize"]
            size = MB * sum((low == MinKey() or low <= key) and (high == MaxKey() or key < high) for key in self.keys)
            return {"size": min(size, limit), "maxReached": True} if size >= limit else {"size": size}
        if request.name == "mergeChunks":
            low, high = (bound["x"] for bound in document["bounds"])
            self.catalog.merge(self.sharded, low, high, shard=self.set_name)
            return {}
        if request.name == "_shardsvrMoveRange":
            low, high = document["min"]["x"], document["max"]["x"]
            self.catalog.move(self.sharded, low, high, self.set_name, document["toShard"])
            return {}
        return super().answer(request)


@pytest.fixture(scope="module")
def defragmenting_set(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Set]:
    with replica_set(tmp_path_factory.mktemp("defragmentation"), daemon="configd") as running:
        yield running


@pytest.fixture(scope="module")
def added(defragmenting_set: Set) -> Iterator[tuple[MongoClient[dict[str, Any]], dict[str, ChangingShard]]]:
    with serving(ChangingShard, "a", "b", "c") as shards, defragmenting_set.members[0].client() as client:
        for shard in shards.values():
            CatalogUser(client).run({"_configsvrAddShard": shard.connection_string})
        client.admin.command("setParameter", 1, chunkDefragmentationThrottlingMS=0)
        yield client, shards


class World:
    """A config daemon with three shards."""

    def __init__(self, catalog: CatalogUser, shards: dict[str, ChangingShard]) -> None:
        self.catalog = catalog
        self.shards = shards

    def collection(self, chunks: Bounds, keys: list[int]) -> Sharded:
        """A collection with a chunk size of 40 MB, so that chunks with fewer than 10 documents are small."""
        sharded = self.catalog.shard_collection(NAMESPACE, chunks)
        self.configure(chunkSize=40)
        for shard in self.shards.values():
            shard.sharded, shard.keys, shard.catalog = sharded, keys, self.catalog
        return sharded

    def configure(self, **options: object) -> None:
        self.run({"_configsvrConfigureCollectionBalancing": NAMESPACE, **options})

    def run(self, command: dict[str, Any]) -> dict[str, Any]:
        return self.catalog.run(command, write_concern=None)

    def status(self) -> dict[str, Any]:
        return self.run({"_configsvrBalancerCollectionStatus": NAMESPACE})

    def entry(self) -> dict[str, Any]:
        found = self.catalog.config.collections.find_one({"_id": NAMESPACE})
        assert found is not None
        return dict(found)

    def wait_finished(self) -> None:
        eventually(lambda: "defragmentCollection" not in self.entry(), within=60, what="the end of defragmentation")

    def placement(self, sharded: Sharded) -> Bounds:
        return [(each["min"]["x"], each["max"]["x"], each["shard"]) for each in self.catalog.chunks(sharded)]

    def received(self, name: str) -> int:
        return sum(len(shard.received(name)) for shard in self.shards.values())


@pytest.fixture
def world(added: tuple[MongoClient[dict[str, Any]], dict[str, ChangingShard]]) -> Iterator[World]:
    client, shards = added
    world = World(CatalogUser(client), shards)
    for shard in shards.values():
        shard.commands.clear()
        shard.failures.clear()
        shard.held.clear()
    yield world
    world.run({"_configsvrBalancerStop": 1})
    for name in ("collections", "chunks", "tags", "settings"):
        client.config[name].delete_many({})
    client.config.shards.update_many({}, {"$unset": {"draining": 1, "tags": 1}})
    world.run({"_configsvrBalancerStop": 1})


FRAGMENTS: Bounds = [
    (MinKey(), 0, "a"),
    (0, 10, "a"),
    (10, 20, "b"),
    (20, 30, "b"),
    (30, 35, "c"),
    (35, 40, "a"),
    (40, MaxKey(), "a"),
]
KEYS = [*range(30), 32, *range(35, 60)]


def test_small_chunks_are_merged_with_their_neighbours(world: World) -> None:
    sharded = world.collection(FRAGMENTS, KEYS)
    world.configure(defragmentCollection=True)
    waiting = world.status()
    assert waiting["firstComplianceViolation"] == "defragmentingChunks"
    assert waiting["details"] == {"currentPhase": "none"}
    world.run({"_configsvrBalancerStart": 1})
    world.wait_finished()
    # The chunk of one document between those of b and a is moved, the others are merged where they are.
    assert world.placement(sharded) == [(MinKey(), 10, "a"), (10, 35, "b"), (35, MaxKey(), "a")]
    assert world.received("_shardsvrMoveRange") == 1
    assert "defragmentationPhase" not in world.entry()
    assert not [each for each in world.catalog.chunks(sharded) if "estimatedDataSizeBytes" in each]
    assert world.status()["balancerCompliant"] is True


def test_zones_are_respected(world: World) -> None:
    sharded = world.collection(FRAGMENTS, KEYS)
    world.run({"_configsvrAddShardToZone": "c", "zone": "z", "writeConcern": {"w": "majority"}})
    zone = {"_configsvrUpdateZoneKeyRange": NAMESPACE, "min": {"x": 30}, "max": {"x": 35}, "zone": "z"}
    world.run({**zone, "writeConcern": {"w": "majority"}})
    world.configure(defragmentCollection=True)
    world.run({"_configsvrBalancerStart": 1})
    world.wait_finished()
    assert world.placement(sharded) == [(MinKey(), 10, "a"), (10, 30, "b"), (30, 35, "c"), (35, MaxKey(), "a")]
    assert world.received("_shardsvrMoveRange") == 0


def test_the_next_primary_continues_in_the_same_phase(world: World) -> None:
    """What a primary finds is all in the catalog."""
    sharded = world.collection([(MinKey(), 0, "a"), (0, 10, "b"), (10, MaxKey(), "a")], [*range(-20, 0), 5])
    chunks = world.catalog.config.chunks
    chunks.update_many({"uuid": sharded.uuid}, {"$set": {"estimatedDataSizeBytes": Int64((1 << 63) - 1)}})
    chunks.update_one({"uuid": sharded.uuid, "min": {"x": 0}}, {"$set": {"estimatedDataSizeBytes": Int64(MB)}})
    state = {"defragmentCollection": True, "defragmentationPhase": "moveAndMergeChunks"}
    world.catalog.config.collections.update_one({"_id": NAMESPACE}, {"$set": state})
    details = {"currentPhase": "moveAndMergeChunks", "progress": {"remainingChunksToProcess": 1}}
    assert world.status()["details"] == details
    world.run({"_configsvrBalancerStart": 1})
    world.wait_finished()
    assert world.placement(sharded) == [(MinKey(), MaxKey(), "a")]
    assert world.received("dataSize") == 0


def test_a_chunk_that_cannot_be_moved_stays(world: World) -> None:
    sharded = world.collection(FRAGMENTS, KEYS)
    for shard in world.shards.values():
        shard.failures["_shardsvrMoveRange"] = CommandError(ErrorCode.ChunkTooBig, "too big")
    world.configure(defragmentCollection=True)
    world.run({"_configsvrBalancerStart": 1})
    world.wait_finished()
    assert (30, 35, "c") in world.placement(sharded)
    assert len(world.placement(sharded)) == 4


def test_it_can_be_turned_off(world: World) -> None:
    sharded = world.collection(FRAGMENTS, KEYS)
    world.configure(defragmentCollection=True)
    world.configure(defragmentCollection=False)
    assert "defragmentCollection" not in world.entry()
    world.run({"_configsvrBalancerStart": 1})
    assert world.status()["balancerCompliant"] is True
    assert world.placement(sharded) == FRAGMENTS


def test_another_collection_of_the_name_begins_anew(world: World) -> None:
    """The collection is dropped, created again and defragmented again while its last chunk is being measured."""
    chunks: Bounds = [(MinKey(), 0, "a"), (0, 10, "b"), (10, MaxKey(), "c")]
    keys = [*range(-20, 1), *range(10, 30)]
    dropped = world.collection(chunks, keys)
    may_end = world.shards["c"].held["dataSize"] = threading.Event()
    world.configure(defragmentCollection=True)
    world.run({"_configsvrBalancerStart": 1})
    eventually(lambda: world.shards["c"].received("dataSize"), within=60, what="the last chunk is measured")
    world.catalog.config.collections.delete_one({"_id": NAMESPACE})
    world.catalog.config.chunks.delete_many({"uuid": dropped.uuid})
    created = world.collection(chunks, keys)
    world.configure(defragmentCollection=True)
    may_end.set()
    world.wait_finished()
    assert world.placement(created) == [(MinKey(), 10, "a"), (10, MaxKey(), "c")]


def test_small_chunks_of_an_unknown_shard_stay(world: World) -> None:
    """The shards are read first: a chunk may be moved by hand to one that has been added since then."""
    sharded = world.collection(FRAGMENTS, KEYS)
    chunks = world.catalog.config.chunks
    chunks.update_one({"uuid": sharded.uuid, "min": {"x": 30}}, {"$set": {"shard": "nobody"}})
    chunks.update_one({"uuid": sharded.uuid, "min": {"x": 30}}, {"$set": {"estimatedDataSizeBytes": Int64(MB)}})
    world.configure(defragmentCollection=True)
    world.run({"_configsvrBalancerStart": 1})
    world.wait_finished()
    placed = [(MinKey(), 10, "a"), (10, 30, "b"), (30, 35, "nobody"), (35, MaxKey(), "a")]
    assert world.placement(sharded) == placed


def test_draining_shards_receive_nothing(world: World) -> None:
    world.catalog.config.shards.update_one({"_id": "a"}, {"$set": {"draining": True}})
    world.catalog.config.shards.update_one({"_id": "b"}, {"$set": {"draining": True}})
    sharded = world.collection(FRAGMENTS, KEYS)
    world.configure(defragmentCollection=True)
    world.run({"_configsvrBalancerStart": 1})
    eventually(lambda: world.received("dataSize") >= 4, within=60, what="all chunks are measured")
    world.wait_finished()
    assert (30, 35, "c") in world.placement(sharded)


def test_nothing_begins_once_the_balancer_is_stopped(world: World) -> None:
    """``balancerStop`` waits for the move under way; the merge that belongs to it is made after the next start."""
    sharded = world.collection(FRAGMENTS, KEYS)
    may_end = threading.Event()
    for shard in world.shards.values():
        shard.held["_shardsvrMoveRange"] = may_end
    world.configure(defragmentCollection=True)
    world.run({"_configsvrBalancerStart": 1})
    eventually(lambda: world.received("_shardsvrMoveRange"), within=60, what="a move")
    with ThreadPoolExecutor(1) as pool:
        stopping = pool.submit(world.run, {"_configsvrBalancerStop": 1})
        eventually(lambda: world.run({"_configsvrBalancerStatus": 1})["mode"] == "off", within=60, what="it stops")
        assert not stopping.done()
        may_end.set()
        stopping.result(60)
    before = [len(shard.commands) for shard in world.shards.values()]
    assert "defragmentCollection" in world.entry()
    assert [len(shard.commands) for shard in world.shards.values()] == before
    world.run({"_configsvrBalancerStart": 1})
    world.wait_finished()
    assert world.placement(sharded) == [(MinKey(), 10, "a"), (10, 35, "b"), (35, MaxKey(), "a")]
