"""``_configsvrMoveRange``: finding the donor and giving it the order."""

from typing import Any

import pytest
from bson.max_key import MaxKey
from bson.min_key import MinKey
from pymongo.errors import OperationFailure

from tests.configd.catalog_user import CatalogUser, Sharded
from tests.configd.fake_shard import FakeShard
from wire.error_codes import ErrorCode
from wire.errors import CommandError

LOW, HIGH = MinKey(), MaxKey()


@pytest.fixture
def sharded(catalog: CatalogUser, request: pytest.FixtureRequest) -> Sharded:
    """A collection with a chunk on each shard."""
    return catalog.shard_collection(f"move.{request.node.name}", [(LOW, 0, "a"), (0, 10, "b"), (10, HIGH, "a")])


def order(shard: FakeShard) -> dict[str, Any]:
    [received] = shard.received("_shardsvrMoveRange")
    return {name: value for name, value in received.items() if name not in ("$db", "lsid", "$clusterTime")}


def test_move_range_orders_the_donor(catalog: CatalogUser, sharded: Sharded, shards: dict[str, FakeShard]) -> None:
    assert catalog.run({"_configsvrMoveRange": sharded.namespace, "toShard": "b", "min": {"x": 10}}) == {"ok": 1.0}
    assert order(shards["a"]) == {
        "_shardsvrMoveRange": sharded.namespace,
        "toShard": "b",
        "min": {"x": 10},
        "max": {"x": HIGH},
        "waitForDelete": False,
        "epoch": sharded.epoch,
        "fromShard": "a",
        "maxChunkSizeBytes": 128 << 20,
        "forceJumbo": 0,
        "secondaryThrottle": False,
        "writeConcern": {"w": "majority", "wtimeout": 60_000},
    }


@pytest.mark.parametrize(
    ("given", "low", "high"),
    [
        ({"min": {"x": 12}}, 12, HIGH),
        ({"max": {"x": 0}}, LOW, 0),
        ({"max": {"x": -5}}, LOW, -5),
        ({"max": {"x": HIGH}}, 10, HIGH),
        ({"min": {"x": 20}, "max": {"x": 30}}, 20, 30),
    ],
)
def test_move_range_computes_the_missing_bound(
    catalog: CatalogUser,
    shards: dict[str, FakeShard],
    given: dict[str, Any],
    low: object,
    high: object,
    request: pytest.FixtureRequest,
) -> None:
    namespace = f"move.bounds{abs(hash(request.node.name))}"
    catalog.shard_collection(namespace, [(LOW, 0, "a"), (0, 10, "b"), (10, HIGH, "a")])
    catalog.run({"_configsvrMoveRange": namespace, "toShard": "b", **given})
    received = order(shards["a"])
    assert (received["min"], received["max"]) == ({"x": low}, {"x": high})


def test_move_range_to_where_it_is_moves_nothing(
    catalog: CatalogUser, sharded: Sharded, shards: dict[str, FakeShard]
) -> None:
    assert catalog.run({"_configsvrMoveRange": sharded.namespace, "toShard": "b", "min": {"x": 5}}) == {"ok": 1.0}
    assert not shards["b"].received("_shardsvrMoveRange")


def test_move_range_passes_options_on(catalog: CatalogUser, sharded: Sharded, shards: dict[str, FakeShard]) -> None:
    catalog.config.collections.update_one({"_id": sharded.namespace}, {"$set": {"maxChunkSizeBytes": 5}})
    options = {"waitForDelete": True, "forceJumbo": 1, "secondaryThrottle": True}
    catalog.run({"_configsvrMoveRange": sharded.namespace, "toShard": "b", "min": {"x": 10}, **options})
    received = order(shards["a"])
    assert received["waitForDelete"] is received["secondaryThrottle"] is True
    assert received["forceJumbo"] == 1
    assert received["maxChunkSizeBytes"] == 5


def test_move_range_answers_what_the_donor_says(
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
        ({"min": {"y": 1}}, ErrorCode.ShardKeyNotFound),
        ({"min": {"x": HIGH}}, ErrorCode.ShardKeyNotFound),
        ({"max": {"x": 5}}, ErrorCode.FailedToParse),
        ({"_configsvrMoveRange": "move.unknown"}, ErrorCode.NamespaceNotFound),
        ({"min": None}, ErrorCode.TypeMismatch),
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
    with pytest.raises(OperationFailure, match="undergoing changes") as failure:
        catalog.run({"_configsvrMoveRange": sharded.namespace, "toShard": "b", "min": {"x": 10}})
    assert failure.value.code == ErrorCode.ConflictingOperationInProgress
    assert not shards["a"].received("_shardsvrMoveRange")
