"""Refusals of the preflight, by name, and the collections that it plans."""

from collections.abc import Mapping
from typing import Any

import bson
import pytest

from shardwright.sync.plan import (
    TTL_NEVER,
    Collection,
    Deployment,
    create_command,
    id_filter,
    index_at_target,
    key_filter,
    planned,
)
from shardwright.sync.replication import Filter, Replication
from shardwright.wire import rawbson

NS = "shop.orders"


def deployment(*collections: Collection, is_sharded: bool = False, identity: str = "one", **more: Any) -> Deployment:  # noqa: ANN401 - any field
    fields: dict[str, Any] = {"version": (6, 0), **more}
    return Deployment(
        is_sharded=is_sharded,
        identity=identity,
        collections={each.namespace: each for each in collections},
        **fields,
    )


def replication(*exclude: str, **shard: Mapping[str, Any]) -> Replication:
    return Replication("mongodb://a", "mongodb://b", Filter(exclude=frozenset(exclude)), shard)


CAPPED = Collection(NS, options={"capped": True, "size": 1})


@pytest.mark.parametrize(
    ("source", "target", "merges", "counts", "reason"),
    [
        (deployment(CAPPED), deployment(identity="two"), False, {}, "shop.orders is capped"),
        (deployment(Collection(NS, "timeseries")), deployment(identity="two"), False, {}, "is a time-series"),
        (deployment(Collection("shop.system.js")), deployment(identity="two"), False, {}, "is a system collection"),
        (
            deployment(Collection(NS, options={"storageEngine": {}})),
            deployment(identity="two"),
            False,
            {},
            "has the option storageEngine",
        ),
        (deployment(Collection(NS)), deployment(identity="two"), False, {NS: 1}, "has documents at the target"),
        (deployment(), deployment(), False, {}, "are the same deployment"),
        (deployment(version=(5, 0)), deployment(identity="two"), False, {}, "the source runs version 5.0"),
        (
            deployment(
                Collection(NS, key={"a": 1}, indexes=[{"name": "b_1", "key": {"b": 1}, "unique": True}]),
                is_sharded=True,
            ),
            deployment(is_sharded=True, identity="two"),
            False,
            {},
            "has the unique index b_1",
        ),
    ],
)
def test_what_cannot_be_carried_is_named(
    source: Deployment,
    target: Deployment,
    merges: bool,
    counts: Mapping[str, int],
    reason: str,
) -> None:
    found = planned(replication(), source, target, merges=merges, counts=counts)
    assert len(found.refusals) == 1
    assert reason in found.refusals[0]


def test_what_is_excluded_or_merged_is_not_refused() -> None:
    source, target = deployment(CAPPED, Collection("shop.b")), deployment(identity="two")
    found = planned(replication(NS), source, target, merges=True, counts={"shop.b": 1})
    assert found.refusals == ()
    assert [each.namespace for each in found.collections] == ["shop.b"]


ZONED = Collection(NS, key={"a": 1}, zones=[{"min": {"a": 1}, "max": {"a": 2}, "tag": "north"}])


def test_users_and_zones_that_are_not_carried_are_named() -> None:
    source = deployment(ZONED, is_sharded=True, users=["admin.root"])
    users = "the user or role admin.root is not carried"
    target = deployment(identity="two", is_sharded=True)
    for asked, notes in (
        (Replication("mongodb://a", "mongodb://b", zones=False), ("the zones of shop.orders are not carried", users)),
        (replication(**{NS: {"b": 1}}), ("the zones of shop.orders are not carried", users)),
    ):
        found = planned(asked, source, target, merges=False, counts={})
        assert found.refusals == ()
        assert found.notes == notes
        assert found.collections[0].zones is None
    assert planned(replication(), source, target, merges=False, counts={}, carries_users=True).notes == ()


def test_collections_in_databases_of_the_deployment_are_named() -> None:
    source = deployment(left_out=["admin.a"])
    found = planned(replication(), source, deployment(identity="two"), merges=False, counts={})
    assert found.notes == ("admin.a is not replicated: its database belongs to the deployment",)


def test_zones_need_shards() -> None:
    source = deployment(ZONED, is_sharded=True)
    for shards, refusals in (({"s1": ["south"]}, 1), ({"s1": ["south"], "s2": ["north"]}, 0)):
        target = deployment(identity="two", is_sharded=True, shards=shards)
        found = planned(replication(), source, target, merges=False, counts={})
        assert len(found.refusals) == refusals
        assert found.collections[0].key == {"a": 1}
        assert found.collections[0].zones == ZONED.zones


def test_a_reversed_replication_keeps_the_keys_of_its_target() -> None:
    asked = replication(**{NS: {"b": 1}}).swapped()
    source = deployment(Collection(NS, key={"b": 1}), is_sharded=True)
    for there in ({"a": 1}, None):
        target = deployment(Collection(NS, key=there), identity="two", is_sharded=True)
        assert planned(asked, source, target, merges=False, counts={}).collections[0].key == there


def test_a_replica_set_gets_no_shard_keys() -> None:
    source = deployment(Collection(NS, key={"a": 1}), is_sharded=True)
    assert (
        planned(replication(), source, deployment(identity="two"), merges=False, counts={}).collections[0].key is None
    )
    refused = planned(
        replication(**{NS: {"a": 1}}), source, deployment(identity="two"), merges=False, counts={}
    ).refusals
    assert refused == ("--shard needs a sharded target",)


def test_commands() -> None:
    options = {"validator": {"a": 1}, "autoIndexId": True, "collation": {"locale": "en"}}
    assert create_command(Collection(NS, options=options)) == {
        "create": "orders",
        "validator": {"a": 1},
        "collation": {"locale": "en"},
    }
    index = {"v": 2, "ns": NS, "key": {"t": 1}, "name": "t_1", "expireAfterSeconds": 5}
    assert index_at_target(index, keeps_expiry=False)["expireAfterSeconds"] == TTL_NEVER
    assert index_at_target(index, keeps_expiry=True) == {"key": {"t": 1}, "name": "t_1", "expireAfterSeconds": 5}
    document = bson.encode({"_id": 1, "a": {"b": 2}})
    assert bson.decode(rawbson.from_elements(id_filter(document) + key_filter(document, {"a.b": 1, "c": 1}))) == {
        "_id": 1,
        "a.b": {"$eq": 2},
        "c": {"$eq": None},
    }
