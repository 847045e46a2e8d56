"""``_configsvrCollMod``: the granularity of a time-series collection in the catalog."""

from collections.abc import Mapping
from typing import Any

import pytest
from bson.int64 import Int64
from bson.max_key import MaxKey
from bson.min_key import MinKey
from bson.objectid import ObjectId
from pymongo.errors import OperationFailure

from shardwright.wire.error_codes import ErrorCode
from tests.configd.catalog_user import MAJORITY, CatalogUser, Sharded

FIELDS = {"timeField": "x", "metaField": "m", "granularity": "seconds"}


@pytest.fixture
def buckets(catalog: CatalogUser) -> Sharded:
    """A collection of buckets with three chunks on two shards."""
    name = f"granularity.system.buckets.{ObjectId()}"
    sharded = catalog.shard_collection(name, [(MinKey(), 0, "b"), (0, 5, "a"), (5, MaxKey(), "b")])
    catalog.config.collections.update_one({"_id": name}, {"$set": {"timeseriesFields": FIELDS}})
    return sharded


def coll_mod(catalog: CatalogUser, sharded: Sharded, change: Mapping[str, Any]) -> None:
    db, _, collection = sharded.namespace.partition(".")
    command = {"_configsvrCollMod": collection, "collModRequest": change, "writeConcern": MAJORITY}
    assert catalog.client[db].command(command)["ok"] == 1.0


def versions(catalog: CatalogUser, sharded: Sharded) -> list[tuple[int, int]]:
    return [version for _, _, _, version in catalog.bounds(sharded)]


def test_every_owner_gets_a_version_that_routers_do_not_have(catalog: CatalogUser, buckets: Sharded) -> None:
    assert versions(catalog, buckets) == [(1, 0), (1, 1), (1, 2)]
    for _ in range(2):  # the second changes nothing
        coll_mod(catalog, buckets, {"timeseries": {"granularity": "hours"}, "expireAfterSeconds": 5})
        entry = catalog.config.collections.find_one({"_id": buckets.namespace})
        assert entry is not None
        wide = {**FIELDS, "granularity": "hours", "bucketMaxSpanSeconds": 2_592_000}
        assert (entry["timeseriesFields"], entry["lastmodEpoch"]) == (wide, buckets.epoch)
        assert versions(catalog, buckets) == [(2, 1), (2, 0), (1, 2)]


def test_a_late_change_is_refused(catalog: CatalogUser, coordinator: CatalogUser, buckets: Sharded) -> None:
    """The collection may be a newer one, created with its present granularity."""
    db, _, collection = buckets.namespace.partition(".")
    allow = {"_configsvrSetAllowMigrations": buckets.namespace, "allowMigrations": True}
    change = {"_configsvrCollMod": collection, "collModRequest": {"timeseries": {"granularity": "hours"}}}
    coordinator.client.admin.command({**allow, "txnNumber": Int64(2), "writeConcern": MAJORITY})
    with pytest.raises(OperationFailure) as refused:
        coordinator.client[db].command({**change, "txnNumber": Int64(1), "writeConcern": MAJORITY})
    assert refused.value.code == ErrorCode.TransactionTooOld
    entry = catalog.config.collections.find_one({"_id": buckets.namespace})
    assert entry is not None
    assert entry["timeseriesFields"] == FIELDS


def test_other_options_are_not_in_the_catalog(catalog: CatalogUser, buckets: Sharded) -> None:
    coll_mod(catalog, buckets, {"expireAfterSeconds": 5})
    assert versions(catalog, buckets) == [(1, 0), (1, 1), (1, 2)]


@pytest.mark.parametrize(
    ("name", "granularity", "code"),
    [
        ("missing", "hours", ErrorCode.NamespaceNotSharded),
        (None, "days", ErrorCode.BadValue),
        ("plain", "hours", ErrorCode.InvalidOptions),
    ],
)
def test_refusals(catalog: CatalogUser, buckets: Sharded, name: str | None, granularity: str, code: ErrorCode) -> None:
    if name == "plain":
        catalog.shard_collection("granularity.plain")
    collection = name or buckets.namespace.partition(".")[2]
    command = {"_configsvrCollMod": collection, "collModRequest": {"timeseries": {"granularity": granularity}}}
    with pytest.raises(OperationFailure) as refused:
        catalog.client["granularity"].command({**command, "writeConcern": MAJORITY})
    assert refused.value.code == code
