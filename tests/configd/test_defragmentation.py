"""Defragmentation of a collection by a config daemon, with shards that merge and move chunks in the catalog."""

import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, cast

import pytest
import trio
from bson.int64 import Int64
from bson.max_key import MaxKey
from bson.min_key import MinKey
from pymongo import MongoClient
from trio.testing import MockClock

from shardwright.configd.balancer.defragmenter import Defragmentation
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.request import Request
from tests.configd.balancing import SizedShard
from tests.configd.catalog_user import CatalogUser, Sharded
from tests.configd.fake_shard import serving
from tests.integration.waiting import eventually
from tests.shardd.mini_cluster import Set, replica_set

if TYPE_CHECKING:
    from shardwright.configd.term.term import Term

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
        eventually(lambda: "defragmentCollection" not in self.entry(), what="the end of defragmentation")

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


async def test_an_unexpected_error_does_not_end_the_daemon(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    attempts: list[str] = []

    async def run_phases(_: Defragmentation) -> None:
        await trio.lowlevel.checkpoint()
        attempts.append("phases")
        if len(attempts) == 1:
            raise ValueError("a bound of the wrong type")

    monkeypatch.setattr(Defragmentation, "_run_phases", run_phases)
    await Defragmentation(cast("Term", None), "shop.orders", attempts.append).run()
    assert len(attempts) == 2
    assert [each.message for each in caplog.records if each.exc_info] == [
        "The defragmentation of a collection failed unexpectedly"
    ]


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
    """All state of a defragmentation is in the catalog, so a new primary finds it."""
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


def explained(world: World) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the decisions about the collection, and the skipped chunks."""
    reply = world.run({"_configsvrBalancerExplain": NAMESPACE})
    return reply["decisions"], reply["skipped"]


def summary(decision: dict[str, Any]) -> tuple[Any, ...]:
    names = ("action", "shard", "from", "to", "rule", "zone", "chunks", "bytes", "smallBelowBytes", "neighbours")
    numbers = {name: decision[name] for name in names if name in decision}
    return decision["min"]["x"], decision["max"]["x"], numbers


def test_merges_and_measurements_are_explained(world: World) -> None:
    """The balancer is off: nothing of it is done."""
    sharded = world.collection(FRAGMENTS, KEYS)
    world.configure(defragmentCollection=True)
    (collection,) = world.run({"_configsvrBalancerExplain": NAMESPACE})["collections"]
    assert collection["defragmentation"] == {"currentPhase": "none"}
    decisions, skipped = explained(world)
    rule = "mergeAndMeasureChunks"
    measured = {"rule": rule, "smallBelowBytes": 10 * MB}
    assert [summary(each) for each in decisions] == [
        (MinKey(), 10, {"action": "mergeChunks", "shard": "a", "rule": rule, "chunks": 2}),
        (MinKey(), 10, {"action": "measureChunk", "shard": "a", **measured}),
        (10, 30, {"action": "mergeChunks", "shard": "b", "rule": rule, "chunks": 2}),
        (10, 30, {"action": "measureChunk", "shard": "b", **measured}),
        (30, 35, {"action": "measureChunk", "shard": "c", **measured}),
        (35, MaxKey(), {"action": "mergeChunks", "shard": "a", "rule": rule, "chunks": 2}),
        (35, MaxKey(), {"action": "measureChunk", "shard": "a", **measured}),
    ]
    assert skipped == [{"ns": NAMESPACE, "reason": "its chunks are being defragmented"}]
    assert world.placement(sharded) == FRAGMENTS
    world.catalog.config.collections.update_one({"_id": NAMESPACE}, {"$set": {"permitMigrations": False}})
    decisions, skipped = explained(world)
    assert decisions == []
    assert skipped[1:] == [{"ns": NAMESPACE, "rule": rule, "reason": "migrations of the collection are not permitted"}]


def in_phase(world: World, phase: str, bounds: Bounds, *sizes: int) -> Sharded:
    """A collection whose defragmentation has got to a phase, with the sizes of its chunks in MB; from 10 on large."""
    sharded = world.collection(bounds, [])
    for (low, _, _), size in zip(bounds, sizes, strict=True):
        recorded = Int64(size * MB if size < 10 else (1 << 63) - 1)
        query = {"uuid": sharded.uuid, "min": {"x": low}}
        world.catalog.config.chunks.update_one(query, {"$set": {"estimatedDataSizeBytes": recorded}})
    state = {"defragmentCollection": True, "defragmentationPhase": phase}
    world.catalog.config.collections.update_one({"_id": NAMESPACE}, {"$set": state})
    return sharded


def test_moves_to_neighbours_are_explained(world: World) -> None:
    rule = "moveAndMergeChunks"
    bounds: Bounds = [(MinKey(), 0, "a"), (0, 10, "b"), (10, 20, "c"), (20, MaxKey(), "a")]
    sharded = in_phase(world, rule, bounds, 20, 3, 4, 2)
    query = {"uuid": sharded.uuid, "min": {"x": 20}}
    world.catalog.config.chunks.update_one(query, {"$set": {"shard": "nobody"}})
    decisions, skipped = explained(world)
    assert [summary(each) for each in decisions] == [
        (
            *(0, 10),
            {
                **{"action": "moveChunk", "from": "b", "to": "a", "rule": rule},
                **{"bytes": 3 * MB, "smallBelowBytes": 10 * MB, "neighbours": 1},
            },
        ),
        (MinKey(), 10, {"action": "mergeChunks", "shard": "a", "rule": rule, "chunks": 2}),
    ]
    assert skipped[1:] == [
        {
            **{"ns": NAMESPACE, "rule": rule, "shard": "c", "min": {"x": 10}, "max": {"x": 20}},
            "reason": "what becomes of it is decided when its neighbour has been merged",
        },
        {
            **{"ns": NAMESPACE, "rule": rule, "shard": "nobody", "min": {"x": 20}, "max": {"x": MaxKey()}},
            "reason": "there is no such shard",
        },
    ]


def test_chunks_without_a_neighbour_are_explained(world: World) -> None:
    rule = "moveAndMergeChunks"
    in_phase(world, rule, [(MinKey(), 0, "a"), (0, 10, "b"), (10, MaxKey(), "a")], 20, 3, 20)
    world.catalog.config.shards.update_one({"_id": "a"}, {"$set": {"draining": True}})
    _, skipped = explained(world)
    assert [each["reason"] for each in skipped[1:]] == [
        "no shard of its neighbours may receive it: it is draining, or not in the zone"
    ]
    world.run({"_configsvrAddShardToZone": "b", "zone": "z", "writeConcern": {"w": "majority"}})
    zone = {"_configsvrUpdateZoneKeyRange": NAMESPACE, "min": {"x": 0}, "max": {"x": 10}, "zone": "z"}
    world.run({**zone, "writeConcern": {"w": "majority"}})
    _, skipped = explained(world)
    assert [(each["zone"], each["reason"]) for each in skipped[1:]] == [("z", "it has no neighbour in its zone")]


def test_last_merges_are_explained(world: World) -> None:
    in_phase(world, "mergeChunks", [(MinKey(), 0, "a"), (0, 10, "a"), (10, MaxKey(), "b")], 3, 4, 20)
    decisions, _ = explained(world)
    (merge,) = map(summary, decisions)
    numbers = {"action": "mergeChunks", "shard": "a", "rule": "mergeChunks", "chunks": 2, "bytes": 7 * MB}
    assert merge == (MinKey(), 10, numbers)


def test_long_explanations_are_cut(world: World) -> None:
    bounds: Bounds = [(number, number + 1, "ab"[number % 2]) for number in range(130)]
    bounds = [(MinKey(), 0, "b"), *bounds, (130, MaxKey(), "a")]
    in_phase(world, "mergeAndMeasureChunks", bounds, *[20] * len(bounds))
    world.catalog.config.chunks.update_many({}, {"$unset": {"estimatedDataSizeBytes": 1}})
    decisions, skipped = explained(world)
    assert len(decisions) == 100
    assert skipped[-1]["reason"] == "only the first 100 decisions of the phase are shown"


def test_decisions_are_logged(world: World, defragmenting_set: Set) -> None:
    world.collection(FRAGMENTS, KEYS)
    log = defragmenting_set.members[0].daemon.log
    before = len(log.read_text())
    world.configure(defragmentCollection=True)
    world.run({"_configsvrBalancerStart": 1})
    world.wait_finished()
    lines = log.read_text()[before:].splitlines()

    def logged(message: str) -> list[str]:
        return [line for line in lines if message in line]

    (move,) = logged("Moving a small chunk to its neighbour")
    assert all(part in move for part in (NAMESPACE, "moveAndMergeChunks", str(MB), str(10 * MB)))
    merges = logged("Merging chunks")
    assert [sum(rule in each for each in merges) for rule in ("mergeAndMeasureChunks", "moveAndMergeChunks")] == [3, 1]


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
    eventually(lambda: world.shards["c"].received("dataSize"), what="the last chunk is measured")
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
    eventually(lambda: world.received("dataSize") >= 4, what="all chunks are measured")
    world.wait_finished()
    assert (30, 35, "c") in world.placement(sharded)


def test_nothing_begins_once_the_balancer_is_stopped(world: World) -> None:
    """``balancerStop`` waits for the move in progress; the merge that belongs to it is made after the next start."""
    sharded = world.collection(FRAGMENTS, KEYS)
    may_end = threading.Event()
    for shard in world.shards.values():
        shard.held["_shardsvrMoveRange"] = may_end
    world.configure(defragmentCollection=True)
    world.run({"_configsvrBalancerStart": 1})
    eventually(lambda: world.received("_shardsvrMoveRange"), what="a move")
    with ThreadPoolExecutor(1) as pool:
        stopping = pool.submit(world.run, {"_configsvrBalancerStop": 1})
        eventually(lambda: world.run({"_configsvrBalancerStatus": 1})["mode"] == "off", what="it stops")
        assert not stopping.done()
        may_end.set()
        stopping.result(60)
    before = [len(shard.commands) for shard in world.shards.values()]
    assert "defragmentCollection" in world.entry()
    assert [len(shard.commands) for shard in world.shards.values()] == before
    world.run({"_configsvrBalancerStart": 1})
    world.wait_finished()
    assert world.placement(sharded) == [(MinKey(), 10, "a"), (10, 35, "b"), (35, MaxKey(), "a")]
