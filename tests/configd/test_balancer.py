"""Rounds of the balancer of a config daemon, with shards that report sizes and answer every request."""

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from math import inf, nan
from typing import Any, Final
from urllib.request import urlopen

import pytest
from bson.max_key import MaxKey
from bson.min_key import MinKey
from pymongo import MongoClient
from pymongo.errors import ExecutionTimeout, OperationFailure

from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from tests.configd.balancing import MB, BalancedWorld, SizedShard, uneven
from tests.configd.catalog_user import CatalogUser
from tests.configd.fake_shard import serving
from tests.integration.waiting import eventually
from tests.shardd.mini_cluster import Member, Set, replica_set

CONFIGD: Final = "shardwright_configd_"
"""Prefix of a config daemon's own metrics."""


@pytest.fixture(scope="module")
def balancing_set(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Set]:
    with replica_set(tmp_path_factory.mktemp("balancer"), daemon="configd") as running:
        yield running


@pytest.fixture(scope="module")
def added(balancing_set: Set) -> Iterator[tuple[MongoClient[dict[str, Any]], dict[str, SizedShard]]]:
    with serving(SizedShard, "a", "b") as shards, balancing_set.members[0].client() as client:
        for shard in shards.values():
            CatalogUser(client).run({"_configsvrAddShard": shard.connection_string})
        yield client, shards


@pytest.fixture
def world(added: tuple[MongoClient[dict[str, Any]], dict[str, SizedShard]]) -> Iterator[BalancedWorld]:
    client, shards = added
    world = BalancedWorld(CatalogUser(client), shards)
    for shard in shards.values():
        shard.commands.clear()
        shard.failures.clear()
        shard.held.clear()
        shard.sizes.clear()
        shard.split_keys = []
    yield world
    for shard in shards.values():
        for event in shard.held.values():
            event.set()
    world.run({"_configsvrBalancerStop": 1})
    for name in ("collections", "chunks", "tags", "settings"):
        client.config[name].delete_many({})
    client.config.shards.update_many({}, {"$unset": {"draining": 1, "tags": 1}})
    world.run({"_configsvrBalancerStop": 1})


def test_a_round_moves_data_and_is_recorded(world: BalancedWorld) -> None:
    sharded = uneven(world)
    before = len(world.logged_rounds())
    world.start()
    move = world.wait_moves("a", 1)[0]
    fields = ("_shardsvrMoveRange", "toShard", "min", "epoch", "fromShard", "maxChunkSizeBytes", "forceJumbo")
    assert {name: move[name] for name in fields} == {
        "_shardsvrMoveRange": "db.uneven",
        "toShard": "b",
        "min": {"x": MinKey()},
        "epoch": sharded.epoch,
        "fromShard": "a",
        "maxChunkSizeBytes": 128 * MB,
        "forceJumbo": 0,
    }
    assert "max" not in move
    eventually(lambda: len(world.logged_rounds()) > before, within=30, what="the round is recorded")
    details = world.logged_rounds()[before]
    assert list(details) == ["executionTimeMillis", "errorOccurred", "candidateChunks", "chunksMoved"]
    assert (details["errorOccurred"], details["candidateChunks"], details["chunksMoved"]) == (False, 1, 1)


def test_even_collections_are_left_alone_and_nothing_is_recorded(world: BalancedWorld) -> None:
    uneven(world, size=383 * MB)
    before = len(world.logged_rounds())
    world.run_round()
    assert world.shards["a"].moves == []
    assert len(world.logged_rounds()) == before


@pytest.mark.parametrize(
    "settings",
    [
        {"mode": "full", "stopped": True},
        {"mode": "autoSplitOnly"},
        {"mode": "strange"},
        {"mode": "full", "activeWindow": {"start": "00:00", "stop": "0"}},
        {"mode": "full", "balancerPolicy": "strange"},
    ],
)
def test_settings_under_which_nothing_moves(world: BalancedWorld, settings: dict[str, Any]) -> None:
    sharded = uneven(world)
    world.catalog.config.settings.replace_one({"_id": "balancer"}, settings, upsert=True)
    number = world.run({"_configsvrBalancerStatus": 1})["numBalancerRounds"]

    def has_had_a_round() -> bool:
        world.nudge(sharded)
        return bool(world.run({"_configsvrBalancerStatus": 1})["numBalancerRounds"] > number + 1)

    eventually(has_had_a_round, what="a round")
    assert world.shards["a"].moves == []


def test_rounds_move_within_the_active_window(world: BalancedWorld) -> None:
    """The window is in the local time of the config server."""
    sharded = uneven(world)
    now = datetime.now(UTC).astimezone()

    def window(begin_hours: int, end_hours: int) -> dict[str, str]:
        bounds = (now + timedelta(hours=begin_hours), now + timedelta(hours=end_hours))
        return dict(zip(("start", "stop"), (f"{each:%H:%M}" for each in bounds), strict=True))

    def set_window(begin_hours: int, end_hours: int) -> None:
        settings = {"mode": "full", "stopped": False, "activeWindow": window(begin_hours, end_hours)}
        world.catalog.config.settings.replace_one({"_id": "balancer"}, settings, upsert=True)

    set_window(2, 4)
    before = world.run({"_configsvrBalancerStatus": 1})["numBalancerRounds"]

    def has_had_a_round() -> bool:
        world.nudge(sharded)
        return bool(world.run({"_configsvrBalancerStatus": 1})["numBalancerRounds"] > before + 1)

    eventually(has_had_a_round, what="a round")
    assert world.shards["a"].moves == []
    set_window(-2, 2)
    world.nudge(sharded)
    assert world.wait_moves("a", 1)[0]["_shardsvrMoveRange"] == "db.uneven"


@pytest.mark.parametrize("is_attempted", [True, False])
@pytest.mark.parametrize("policy", ["dataSize", "chunkCount"])
def test_chunks_that_are_too_big_may_be_moved_nevertheless(
    world: BalancedWorld, policy: str, *, is_attempted: bool
) -> None:
    """One that violates its zone, and, by count, one of too many."""
    settings = {"balancerPolicy": policy, "attemptToBalanceJumboChunks": is_attempted}
    world.catalog.config.settings.replace_one({"_id": "balancer"}, settings, upsert=True)
    uneven(world)
    if policy == "dataSize":
        world.catalog.run({"_configsvrAddShardToZone": "b", "zone": "z"})
        zone = {"min": {"x": 0}, "max": {"x": MaxKey()}, "zone": "z"}
        world.catalog.run({"_configsvrUpdateZoneKeyRange": "db.uneven", **zone})
    world.start()
    assert world.wait_moves("a", 1)[0]["forceJumbo"] == (2 if is_attempted else 0)


def test_what_rounds_do_is_counted_and_logged(world: BalancedWorld, balancing_set: Set) -> None:
    (member,) = balancing_set.members
    uneven(world)
    before = metrics(member)
    world.start()
    world.wait_moves("a", 1)
    world.run({"_configsvrBalancerStop": 1})
    after = metrics(member)

    def added(name: str) -> float:
        # There is no counter of a result before the first one.
        return after[name] - before.get(name, 0)

    assert added("balancer_rounds_total") >= added('balancer_moves_total{result="moved"}') >= 1
    assert added("balancer_failed_rounds_total") == 0
    assert after["balancer_round_seconds"] > 0
    assert after["balancer_round_timestamp_seconds"] > 0
    assert after["balancer_running"] == 0
    assert after['shard_data_bytes{shard="a"}'] > after['shard_data_bytes{shard="b"}']
    decision = next(line for line in reversed(member.daemon.log.read_text().splitlines()) if "Moving a chunk" in line)
    assert all(part in decision for part in ("db.uneven", "chunksImbalance", str(400 * MB), str(384 * MB))), decision


def metrics(member: Member) -> dict[str, float]:
    """Return the metrics of a member's config daemon, by name and labels."""
    with urlopen(f"http://127.0.0.1:{member.metrics_port}/metrics", timeout=10) as reply:
        lines = reply.read().decode().splitlines()
    values = (line.removeprefix(CONFIGD).rpartition(" ") for line in lines if line.startswith(CONFIGD))
    return {name: float(value) for name, _, value in values}


def test_settings_apply_to_moves(world: BalancedWorld) -> None:
    uneven(world)
    settings = {"_secondaryThrottle": {"w": 2}, "_waitForDelete": True, "balancerPolicy": "chunkCount"}
    world.catalog.config.settings.update_one({"_id": "balancer"}, {"$set": settings})
    world.catalog.config.settings.replace_one({"_id": "chunksize"}, {"value": 64}, upsert=True)
    world.start()
    move = world.wait_moves("a", 1)[0]
    found = (move["secondaryThrottle"], move["writeConcern"], move["waitForDelete"], move["maxChunkSizeBytes"])
    assert found == (True, {"w": 2}, True, 64 * MB)
    assert move["max"] == {"x": 0}, "by count, whole chunks move"


@pytest.mark.parametrize("throttle", ["yes", None, [True]])
def test_a_throttle_that_is_none_makes_the_balancer_pause(world: BalancedWorld, throttle: object) -> None:
    uneven(world)
    world.catalog.config.settings.update_one({"_id": "balancer"}, {"$set": {"_secondaryThrottle": throttle}})
    world.run_round()
    assert world.shards["a"].moves == []
    world.catalog.config.settings.update_one({"_id": "balancer"}, {"$set": {"_secondaryThrottle": 1}})
    world.start()
    assert world.wait_moves("a", 1)[0]["secondaryThrottle"] is True


def test_a_round_that_fails_unexpectedly_is_not_the_last_one(world: BalancedWorld) -> None:
    uneven(world)
    world.shards["a"].sizes["db.uneven"] = "many"
    world.run_round()
    assert world.logged_rounds()[-1]["errorOccurred"] is True
    world.shards["a"].sizes["db.uneven"] = 400 * MB
    world.start()
    world.wait_moves("a", 1)


def test_collections_that_must_be_left_alone(world: BalancedWorld) -> None:
    uneven(world)
    world.catalog.config.collections.update_one({}, {"$set": {"noBalance": True}})
    world.run_round()
    assert world.shards["a"].moves == []
    assert world.run({"_configsvrBalancerExplain": 1})["skipped"] == [
        {"ns": "db.uneven", "reason": "balancing of the collection is disabled (noBalance)"}
    ]


def test_stop_waits_for_the_round(world: BalancedWorld) -> None:
    uneven(world)
    held = world.shards["a"].held["_shardsvrMoveRange"] = threading.Event()
    world.start()
    world.wait_moves("a", 1)
    assert world.run({"_configsvrBalancerStatus": 1})["inBalancerRound"] is True
    with pytest.raises(ExecutionTimeout):
        world.run({"_configsvrBalancerStop": 1, "maxTimeMS": 100})
    assert world.run({"_configsvrBalancerStatus": 1})["mode"] == "off"
    held.set()
    world.run({"_configsvrBalancerStop": 1})
    assert world.run({"_configsvrBalancerStatus": 1})["inBalancerRound"] is False


def test_a_move_that_fails_is_not_repeated_at_once(world: BalancedWorld) -> None:
    uneven(world)
    world.shards["a"].failures["_shardsvrMoveRange"] = CommandError(ErrorCode.OperationFailed, "no")
    world.start()
    world.wait_moves("a", 1)
    world.start()
    moves = world.wait_moves("a", 2)
    assert [move["min"] for move in moves[:2]] == [{"x": MinKey()}, {"x": 0}], "the next chunk is tried"
    explained = world.run({"_configsvrBalancerExplain": "db.uneven"})
    assert {"ns": "db.uneven", "min": {"x": MinKey()}, "error": "OperationFailed (96): no"} in explained["heldBack"]
    world.run({"_configsvrBalancerStop": 1})
    world.catalog.config.collections.delete_one({"_id": "db.uneven"})
    uneven(world)
    assert not world.run({"_configsvrBalancerExplain": "db.uneven"})["heldBack"], "that was another collection"


def test_chunks_that_are_too_big_are_split_or_marked(world: BalancedWorld) -> None:
    sharded = uneven(world)
    shard = world.shards["a"]
    shard.failures["_shardsvrMoveRange"] = CommandError(ErrorCode.ChunkTooBig, "too big")
    shard.split_keys = [{"x": -20}, {"x": -10}]
    world.start()
    world.wait_moves("a", 1)
    world.run({"_configsvrBalancerStop": 1})
    (split,) = shard.received("splitChunk")
    assert (split["min"], split["splitKeys"]) == ({"x": MinKey()}, [{"x": -10}])
    shard.split_keys = []
    before = world.catalog.bounds(sharded)
    world.start()
    eventually(lambda: all(chunk.get("jumbo") for chunk in world.catalog.chunks(sharded)), what="jumbo chunks")
    assert world.catalog.bounds(sharded) == before
    chunk = world.catalog.chunks(sharded)[0]
    clear = {"epoch": sharded.epoch, "minKey": chunk["min"], "maxKey": chunk["max"]}
    world.catalog.run({"_configsvrClearJumboFlag": sharded.namespace, **clear})
    assert "jumbo" not in world.catalog.chunks(sharded)[0]


def test_zones_are_split_and_filled(world: BalancedWorld) -> None:
    sharded = world.catalog.shard_collection("db.zoned")
    world.catalog.run({"_configsvrAddShardToZone": "b", "zone": "z"})
    zone = {"min": {"x": 5}, "max": {"x": 9}, "zone": "z"}
    world.catalog.run({"_configsvrUpdateZoneKeyRange": sharded.namespace, **zone})
    status = {"_configsvrBalancerCollectionStatus": sharded.namespace}
    assert world.run(status) == {
        "chunkSize": 128.0,
        "balancerCompliant": False,
        "firstComplianceViolation": "zoneViolation",
        "ok": 1.0,
    }
    explained = world.run({"_configsvrBalancerExplain": 1})
    (split,) = explained["decisions"]
    assert (split["action"], split["splitKeys"], split["rule"]) == ("split", [{"x": 5}, {"x": 9}], "zoneBoundary")
    world.start()
    shard = world.shards["a"]
    with shard.arrived:
        assert shard.arrived.wait_for(lambda: shard.received("splitChunk") != [], 60)
    world.run({"_configsvrBalancerStop": 1})
    world.catalog.split(sharded, MinKey(), MaxKey(), 5, 9)  # as the shard would have done
    world.start()
    move = world.wait_moves("a", 1)[0]
    assert (move["min"], move["max"], move["toShard"]) == ({"x": 5}, {"x": 9}, "b")


def test_sessions_have_a_chunk_size_of_their_own_and_no_zones(world: BalancedWorld) -> None:
    sessions = "config.system.sessions"
    uneven(world, sessions, size=700_000)
    world.catalog.run({"_configsvrAddShardToZone": "a", "zone": "z"})
    zone = {"ns": sessions, "min": {"x": MinKey()}, "max": {"x": MaxKey()}, "tag": "z"}
    world.catalog.config.tags.insert_one(zone)
    status = world.run({"_configsvrBalancerCollectionStatus": sessions})
    assert (status["chunkSize"], status["firstComplianceViolation"]) == (0.2, "chunksImbalance")
    world.start()
    move = world.wait_moves("a", 1)[0]
    assert (move["_shardsvrMoveRange"], move["toShard"], move["maxChunkSizeBytes"]) == (sessions, "b", 209_715)


def test_a_chunk_of_an_unknown_shard_is_in_nobodys_way(world: BalancedWorld) -> None:
    """The shards are read first: a chunk may be split or moved by hand to one that has been added since then."""
    lost = world.catalog.shard_collection("db.lost", [(MinKey(), 0, "a"), (0, MaxKey(), "a")])
    world.catalog.config.chunks.update_many({"uuid": lost.uuid}, {"$set": {"shard": "nobody"}})
    world.catalog.run({"_configsvrAddShardToZone": "a", "zone": "z"})
    zone = {"_configsvrUpdateZoneKeyRange": "db.lost", "min": {"x": 10}, "max": {"x": 20}, "zone": "z"}
    world.catalog.run(zone)
    uneven(world)
    world.run_round()
    assert {move["_shardsvrMoveRange"] for move in world.shards["a"].moves} == {"db.uneven"}
    assert world.run({"_configsvrBalancerCollectionStatus": "db.lost"})["firstComplianceViolation"] == "zoneViolation"


def test_draining_shards_are_emptied(world: BalancedWorld) -> None:
    world.catalog.shard_collection("db.drained")
    world.catalog.config.shards.update_one({"_id": "a"}, {"$set": {"draining": True}})
    world.start()
    move = world.wait_moves("a", 1)[0]
    assert (move["min"], move["max"], move["toShard"], move["forceJumbo"]) == (
        {"x": MinKey()},
        {"x": MaxKey()},
        "b",
        2,
    )
    world.catalog.shard_collection("db.other", [(MinKey(), MaxKey(), "b")])
    with pytest.raises(OperationFailure, match="Shard a is currently draining") as failure:
        world.catalog.run({"_configsvrMoveRange": "db.other", "toShard": "a", "min": {"x": 0}})
    assert failure.value.code == ErrorCode.ShardNotFound


def test_a_shard_that_does_not_answer_takes_no_part(world: BalancedWorld) -> None:
    uneven(world)
    world.shards["b"].failures["_shardsvrGetStatsForBalancing"] = CommandError(ErrorCode.OperationFailed, "broken")
    explained = world.run({"_configsvrBalancerExplain": 1})
    assert explained["decisions"] == []
    assert [shard.get("notAvailable") for shard in explained["shards"]] == [None, "OperationFailed (96): broken"]


def test_explain_shows_numbers_and_does_nothing(world: BalancedWorld) -> None:
    uneven(world)
    explained = world.run({"_configsvrBalancerExplain": 1})
    assert explained["collections"] == [
        {"ns": "db.uneven", "chunkSizeBytes": 128 * MB, "bytes": {"a": 400 * MB, "b": 0}}
    ]
    assert explained["decisions"] == [
        {
            "action": "moveRange",
            "ns": "db.uneven",
            "from": "a",
            "to": "b",
            "min": {"x": MinKey()},
            "rule": "chunksImbalance",
            "donorBytes": 400 * MB,
            "recipientBytes": 0,
            "thresholdBytes": 384 * MB,
        }
    ]
    assert (explained["enabled"], explained["mode"]) == (False, "off")
    assert world.shards["a"].moves == []


def test_settings_of_a_collection(world: BalancedWorld) -> None:
    uneven(world)
    command = {"_configsvrConfigureCollectionBalancing": "db.uneven"}
    refused: list[tuple[dict[str, Any], int]] = [
        ({}, ErrorCode.InvalidOptions),
        ({"chunkSize": 1025}, ErrorCode.InvalidOptions),
        ({"chunkSize": -1}, ErrorCode.InvalidOptions),
        ({"chunkSize": inf}, ErrorCode.InvalidOptions),
        ({"chunkSize": nan}, ErrorCode.InvalidOptions),
    ]
    for options, code in refused:
        with pytest.raises(OperationFailure) as failure:
            world.run({**command, **options})
        assert failure.value.code == code
    with pytest.raises(OperationFailure, match="matched 0") as failure:
        world.run({"_configsvrConfigureCollectionBalancing": "db.none", "chunkSize": 1})
    assert failure.value.code == ErrorCode.NamespaceNotSharded
    world.run({**command, "chunkSize": 200, "enableAutoSplitter": False})
    status = {"_configsvrBalancerCollectionStatus": "db.uneven"}
    assert world.run(status) == {"chunkSize": 200.0, "balancerCompliant": True, "ok": 1.0}
    entry = world.catalog.config.collections.find_one({"_id": "db.uneven"})
    assert entry is not None
    assert (entry["maxChunkSizeBytes"], entry["noAutoSplit"]) == (200 * MB, True)
    world.run({**command, "chunkSize": 0})
    assert world.run(status)["firstComplianceViolation"] == "chunksImbalance"


def test_a_round_that_fails_is_recorded_and_the_next_one_is_not_affected(world: BalancedWorld) -> None:
    sharded = uneven(world)
    before = len(world.logged_rounds())
    world.catalog.config.tags.insert_one({"_id": "broken", "ns": "db.uneven", "tag": 1})
    world.start()
    eventually(lambda: len(world.logged_rounds()) > before, what="the round is recorded")
    details = world.logged_rounds()[before]
    assert list(details) == ["executionTimeMillis", "errorOccurred", "errmsg"]
    assert details["errorOccurred"] is True
    world.catalog.config.tags.delete_many({})
    world.nudge(sharded)
    world.wait_moves("a", 1)
