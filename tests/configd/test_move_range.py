"""``_configsvrMoveRange``: finding the donor and sending it the request."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from bson.max_key import MaxKey
from bson.min_key import MinKey
from pymongo.errors import OperationFailure

from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from tests.configd.catalog_user import GOSSIP, CatalogUser, Sharded
from tests.configd.fake_shard import FakeShard

LOW, HIGH = MinKey(), MaxKey()


@pytest.fixture
def sharded(catalog: CatalogUser, request: pytest.FixtureRequest) -> Sharded:
    """A collection with a chunk on each shard."""
    return catalog.shard_collection(f"move.{request.node.name}", [(LOW, 0, "a"), (0, 10, "b"), (10, HIGH, "a")])


def request_to(shard: FakeShard) -> dict[str, Any]:
    [received] = shard.received("_shardsvrMoveRange")
    return {name: value for name, value in received.items() if name not in ("$db", "lsid", *GOSSIP)}


def test_move_range_sends_the_donor_a_request(
    catalog: CatalogUser, sharded: Sharded, shards: dict[str, FakeShard]
) -> None:
    assert catalog.run({"_configsvrMoveRange": sharded.namespace, "toShard": "b", "min": {"x": 10}}) == {"ok": 1.0}
    assert request_to(shards["a"]) == {
        "_shardsvrMoveRange": sharded.namespace,
        "toShard": "b",
        "min": {"x": 10},
        "waitForDelete": False,
        "epoch": sharded.epoch,
        "fromShard": "a",
        "maxChunkSizeBytes": 128 << 20,
        "forceJumbo": 0,
        "secondaryThrottle": False,
        "writeConcern": {"w": 1, "wtimeout": 0},
    }


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"min": {"x": 12}}, {"min": {"x": 12}}),  # the donor determines how much fits
        ({"max": {"x": 0}}, {"min": {"x": LOW}, "max": {"x": 0}}),
        ({"max": {"x": -5}}, {"min": {"x": LOW}, "max": {"x": -5}}),
        ({"max": {"x": HIGH}}, {"min": {"x": 10}, "max": {"x": HIGH}}),
        ({"min": {"x": 20}, "max": {"x": 30}}, {"min": {"x": 20}, "max": {"x": 30}}),
    ],
)
def test_move_range_bounds(
    catalog: CatalogUser,
    shards: dict[str, FakeShard],
    given: dict[str, Any],
    expected: dict[str, Any],
    request: pytest.FixtureRequest,
) -> None:
    namespace = f"move.bounds{abs(hash(request.node.name))}"
    catalog.shard_collection(namespace, [(LOW, 0, "a"), (0, 10, "b"), (10, HIGH, "a")])
    catalog.run({"_configsvrMoveRange": namespace, "toShard": "b", **given})
    received = request_to(shards["a"])
    assert {name: received[name] for name in ("min", "max") if name in received} == expected


def test_move_range_to_its_owner_moves_nothing(
    catalog: CatalogUser, sharded: Sharded, shards: dict[str, FakeShard]
) -> None:
    assert catalog.run({"_configsvrMoveRange": sharded.namespace, "toShard": "b", "min": {"x": 5}}) == {"ok": 1.0}
    assert not shards["b"].received("_shardsvrMoveRange")


def test_move_range_passes_options_on(catalog: CatalogUser, sharded: Sharded, shards: dict[str, FakeShard]) -> None:
    catalog.config.collections.update_one({"_id": sharded.namespace}, {"$set": {"maxChunkSizeBytes": 5}})
    options = {"waitForDelete": True, "forceJumbo": 1}
    catalog.run({"_configsvrMoveRange": sharded.namespace, "toShard": "b", "min": {"x": 10}, **options})
    received = request_to(shards["a"])
    assert received["waitForDelete"] is True
    assert received["forceJumbo"] == 1
    assert received["maxChunkSizeBytes"] == 5


@pytest.mark.parametrize(
    ("throttle", "expected"),
    [
        ({"secondaryThrottle": True}, (True, {"w": 1, "wtimeout": 0})),
        ({"secondaryThrottle": True, "writeConcern": {"w": 2}}, (True, {"w": 2})),
        ({"_secondaryThrottle": True, "writeConcern": {"w": "majority"}}, (True, {"w": "majority"})),
        ({"secondaryThrottle": False, "writeConcern": {"w": 2}}, (False, {"w": 1, "wtimeout": 0})),
        ({"secondaryThrottle": False, "writeConcern": None}, (False, {"w": 1, "wtimeout": 0})),
        ({"secondaryThrottle": True, "_secondaryThrottle": 1}, (True, {"w": 1, "wtimeout": 0})),
        ({}, (False, {"w": 1, "wtimeout": 0})),
        (None, (False, {"w": 1, "wtimeout": 0})),
    ],
)
def test_move_range_throttle(
    catalog: CatalogUser,
    sharded: Sharded,
    shards: dict[str, FakeShard],
    throttle: dict[str, Any] | None,
    expected: tuple[bool, dict[str, Any]],
) -> None:
    move = {"_configsvrMoveRange": sharded.namespace, "toShard": "b", "min": {"x": 10}}
    catalog.run({**move, "secondaryThrottle": throttle})
    received = request_to(shards["a"])
    assert (received["secondaryThrottle"], received["writeConcern"]) == expected


def test_move_range_does_not_report_a_donors_step_down_as_its_own(
    catalog: CatalogUser, sharded: Sharded, shards: dict[str, FakeShard]
) -> None:
    shards["a"].failures["_shardsvrMoveRange"] = CommandError(
        ErrorCode.InterruptedDueToReplStateChange, "operation was interrupted"
    )
    with pytest.raises(OperationFailure, match="shard a changed too often") as failure:
        catalog.run({"_configsvrMoveRange": sharded.namespace, "toShard": "b", "min": {"x": 10}})
    assert failure.value.code == ErrorCode.HostUnreachable
    assert len(shards["a"].received("_shardsvrMoveRange")) > 1


def test_move_range_returns_the_donors_error(
    catalog: CatalogUser, sharded: Sharded, shards: dict[str, FakeShard]
) -> None:
    shards["a"].failures["_shardsvrMoveRange"] = CommandError(
        ErrorCode.StaleConfig, "stale", extra={"ns": sharded.namespace, "shardId": "a"}
    )
    with pytest.raises(OperationFailure) as failure:
        catalog.run({"_configsvrMoveRange": sharded.namespace, "toShard": "b", "min": {"x": 10}})
    assert failure.value.code == ErrorCode.StaleConfig
    assert failure.value.details is not None
    assert failure.value.details["shardId"] == "a"


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"toShard": "c"}, ErrorCode.ShardNotFound),
        ({"toShard": ""}, ErrorCode.NoSuchKey),
        ({"secondaryThrottle": True}, ErrorCode.TypeMismatch),
        ({"secondaryThrottle": {"secondaryThrottle": None}}, ErrorCode.TypeMismatch),
        ({"secondaryThrottle": {"_secondaryThrottle": 1}}, ErrorCode.TypeMismatch),
        ({"secondaryThrottle": {"secondaryThrottle": True, "writeConcern": None}}, 10065),
        ({"secondaryThrottle": {"secondaryThrottle": True, "writeConcern": {}}}, ErrorCode.FailedToParse),
        ({"min": {"y": 1}}, ErrorCode.ShardKeyNotFound),
        ({"min": {"x": HIGH}}, ErrorCode.ShardKeyNotFound),
        ({"max": {"x": 5}}, ErrorCode.FailedToParse),
        ({"_configsvrMoveRange": "move.unknown"}, ErrorCode.NamespaceNotFound),
        ({"min": None}, ErrorCode.InvalidOptions),
    ],
)
def test_move_range_refuses(catalog: CatalogUser, change: dict[str, Any], code: int) -> None:
    namespace = "move.refusing"
    if catalog.config.collections.find_one({"_id": namespace}) is None:
        catalog.shard_collection(namespace)
    with pytest.raises(OperationFailure) as failure:
        catalog.run({"_configsvrMoveRange": namespace, "toShard": "b", "min": {"x": 10}, **change})
    assert failure.value.code == code


def test_move_range_without_bounds(catalog: CatalogUser, sharded: Sharded) -> None:
    with pytest.raises(OperationFailure) as failure:
        catalog.run({"_configsvrMoveRange": sharded.namespace, "toShard": "b"})
    assert failure.value.code == ErrorCode.InvalidOptions


def test_move_range_of_a_frozen_collection(
    catalog: CatalogUser, sharded: Sharded, shards: dict[str, FakeShard]
) -> None:
    catalog.run({"_configsvrSetAllowMigrations": sharded.namespace, "allowMigrations": False})
    # Both shards own chunks, and one of them may have an active migration.
    for shard in shards.values():
        [flush] = shard.received("_flushRoutingTableCacheUpdatesWithWriteConcern")
        assert (flush["_flushRoutingTableCacheUpdatesWithWriteConcern"], flush["syncFromConfig"]) == (
            sharded.namespace,
            True,
        )
    with pytest.raises(OperationFailure, match="undergoing changes") as failure:
        catalog.run({"_configsvrMoveRange": sharded.namespace, "toShard": "b", "min": {"x": 10}})
    assert failure.value.code == ErrorCode.ConflictingOperationInProgress
    assert not shards["a"].received("_shardsvrMoveRange")


@pytest.fixture
def slow_move(shards: dict[str, FakeShard]) -> Iterator[threading.Event]:
    """Shard ``a`` answers its requests when the event is set."""
    moved = shards["a"].held["_shardsvrMoveRange"] = threading.Event()
    yield moved
    moved.set()


def wait_for_requests(shard: FakeShard, count: int) -> None:
    with shard.arrived:
        assert shard.arrived.wait_for(lambda: len(shard.received("_shardsvrMoveRange")) >= count, 10)


def test_move_range_identical_to_one_in_progress_joins_it(
    catalog: CatalogUser, sharded: Sharded, shards: dict[str, FakeShard], slow_move: threading.Event
) -> None:
    move = {"_configsvrMoveRange": sharded.namespace, "toShard": "b", "min": {"x": 10}}
    with ThreadPoolExecutor() as clients:
        first = clients.submit(catalog.run, move)
        wait_for_requests(shards["a"], 1)
        # A caller that gives up does not cancel the move for the others.
        with pytest.raises(OperationFailure) as failure:
            catalog.run({**move, "maxTimeMS": 200})
        assert failure.value.code == ErrorCode.MaxTimeMSExpired
        # A different request has to be decided by the donor.
        other = clients.submit(catalog.run, {**move, "waitForDelete": True})
        wait_for_requests(shards["a"], 2)
        slow_move.set()
        assert first.result() == other.result() == {"ok": 1.0}
    assert [each["waitForDelete"] for each in shards["a"].received("_shardsvrMoveRange")] == [False, True]


def test_move_range_continues_without_the_requester(
    catalog: CatalogUser, sharded: Sharded, shards: dict[str, FakeShard], slow_move: threading.Event
) -> None:
    move = {"_configsvrMoveRange": sharded.namespace, "toShard": "b", "min": {"x": 10}, "maxTimeMS": 200}
    for _ in range(2):
        with pytest.raises(OperationFailure) as failure:
            catalog.run(move)
        assert failure.value.code == ErrorCode.MaxTimeMSExpired
    assert len(shards["a"].received("_shardsvrMoveRange")) == 1
