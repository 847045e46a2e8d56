"""``collMod`` on several shards: it applies everywhere or nowhere."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import pytest
from bson import MaxKey, MinKey
from pymongo.database import Database

from tests.integration.waiting import eventually
from tests.shardd.mini_cluster import MiniCluster
from tests.shardd.router_stand_in import ShardedNamespace

HANGING_BUILD: Final = "hangAfterStartingIndexBuild"


def coll_mod(sharded: ShardedNamespace, **change: object) -> dict[str, Any]:
    return sharded.run(
        {"_shardsvrCollMod": sharded.collection, **change, "databaseVersion": sharded.database_version}, sharded.primary
    )


def options(mini: MiniCluster, sharded: ShardedNamespace, shard: str) -> dict[str, Any]:
    with mini.shard_client(shard) as client:
        (entry,) = client[sharded.db].list_collections(filter={"name": sharded.collection})
        found: dict[str, Any] = entry["options"]
        return found


def index(mini: MiniCluster, sharded: ShardedNamespace, shard: str, name: str) -> dict[str, Any]:
    with mini.shard_client(shard) as client:
        (found,) = [dict(each) for each in client[sharded.db].c.list_indexes() if each["name"] == name]
        return found


def failed_changes(admin: Database[dict[str, Any]]) -> int:
    return int(admin.command("serverStatus")["metrics"]["commands"]["collMod"]["failed"])


def may_migrate(sharded: ShardedNamespace) -> bool:
    return bool(sharded.entry().get("allowMigrations", True))


def test_it_reaches_all_owners(mini: MiniCluster, ranged: ShardedNamespace) -> None:
    reply = coll_mod(ranged, validator={"b": 1})
    assert set(reply["raw"]) == {shard.connection_string for shard in mini.shards.values()}
    for shard in ("sh0", "sh1"):
        assert options(mini, ranged, shard)["validator"] == {"b": 1}
    assert may_migrate(ranged)
    assert coll_mod(ranged, validator={"$where": "1"})["code"] == 2
    assert may_migrate(ranged)
    with mini.shard_client("sh0") as client:
        assert client.config["system.sharding_ddl_coordinators"].count_documents({}) == 0


@pytest.mark.parametrize("option", ["cappedSize", "cappedMax"])
def test_a_view_has_no_size(mini: MiniCluster, ranged: ShardedNamespace, option: str) -> None:
    """A mongod that is asked to change it crashes."""
    with mini.shard_client(ranged.primary) as client:
        client[ranged.db].drop_collection("v")
        client[ranged.db].create_collection("v", viewOn=ranged.collection)
        command = {"_shardsvrCollMod": "v", option: 5000, "databaseVersion": ranged.database_version}
        refused = ranged.run(command, ranged.primary)
        assert (refused["code"], refused["errmsg"]) == (72, f"option not supported on a view: {option}")
        assert client.admin.command("ping")["ok"] == 1


@pytest.mark.parametrize("empty", ["sh0", "sh1"])
def test_it_reaches_shards_without_chunks(mini: MiniCluster, ranged: ShardedNamespace, empty: str) -> None:
    """``listCollections`` is answered by the primary shard, and any shard may receive a chunk again."""
    if empty == "sh1":
        ranged.move({"a": 0}, {"a": 10}, "sh0")
    else:
        ranged.move({"a": MinKey()}, {"a": 0}, "sh1")
        ranged.move({"a": 10}, {"a": MaxKey()}, "sh1")
    owner = {"sh0": "sh1", "sh1": "sh0"}[empty]
    with mini.shard_client(owner) as client:
        client[ranged.db].c.create_index("b")  # as a router has the owners do
    change = {"validator": {"b": {"$gte": 0}}, "index": {"name": "b_1", "hidden": True}}
    assert coll_mod(ranged, **change)["ok"] == 1.0
    assert options(mini, ranged, empty)["validator"] == options(mini, ranged, owner)["validator"] == {"b": {"$gte": 0}}
    assert index(mini, ranged, owner, "b_1")["hidden"]


def test_a_recipient_copies_options(mini: MiniCluster, ranged: ShardedNamespace) -> None:
    """A shard without chunks may have missed any change."""
    ranged.move({"a": 0}, {"a": 10}, "sh0")
    with mini.shard_client("sh1") as client:
        client[ranged.db].command("collMod", "c", validator={"old": 1})
    ranged.move({"a": 0}, {"a": 10}, "sh1")
    assert "validator" not in options(mini, ranged, "sh1")
    with mini.shard_client("sh1") as client:
        client[ranged.db].command("collMod", "c", validator={"old": 1})
    with pytest.raises(Exception, match="the options validator of the collection"):
        ranged.move({"a": 10}, {"a": 20}, "sh1")


def test_an_index_is_made_unique_everywhere_or_nowhere(mini: MiniCluster, ranged: ShardedNamespace) -> None:
    for shard in ("sh0", "sh1"):
        with mini.shard_client(shard) as client:
            client[ranged.db].c.create_index([("a", 1), ("b", 1)], name="u")
    ranged.insert({"_id": 1, "a": 1, "b": 1}, {"_id": 2, "a": 1, "b": 1}, shard="sh1")
    assert coll_mod(ranged, index={"name": "u", "prepareUnique": True})["ok"] == 1.0
    refused = coll_mod(ranged, index={"name": "u", "unique": True})
    assert refused["code"] == 359  # CannotConvertIndexToUnique
    assert not any(index(mini, ranged, shard, "u").get("unique") for shard in ("sh0", "sh1"))
    assert may_migrate(ranged)
    with mini.shard_client("sh1") as client:
        client[ranged.db].c.delete_one({"_id": 2})
    assert coll_mod(ranged, index={"keyPattern": {"a": 1, "b": 1}, "unique": True})["ok"] == 1.0
    assert all(index(mini, ranged, shard, "u")["unique"] for shard in ("sh0", "sh1"))


def test_an_index_that_one_shard_lacks_is_changed_nowhere(mini: MiniCluster, ranged: ShardedNamespace) -> None:
    with mini.shard_client("sh0") as client:
        client[ranged.db].c.create_index("b")
    refused = coll_mod(ranged, index={"name": "b_1", "hidden": True})
    assert (refused["code"], refused["errmsg"]) == (27, f"cannot find index b_1 for ns {ranged.namespace}")
    assert "hidden" not in index(mini, ranged, "sh0", "b_1")


def test_a_shard_that_is_building_an_index_is_waited_for(mini: MiniCluster, ranged: ShardedNamespace) -> None:
    """Its mongod refuses the change for now, when another shard has made it already."""
    ranged.insert({"_id": 1, "a": 1}, shard="sh1")  # an empty collection's index is built at once
    with mini.shard_client("sh1") as client, ThreadPoolExecutor() as pool:
        admin = client.admin
        admin.command("configureFailPoint", HANGING_BUILD, mode="alwaysOn")
        try:
            build = pool.submit(client[ranged.db].c.create_index, "b")
            admin.command("waitForFailPoint", HANGING_BUILD, timesEntered=1, maxTimeMS=30_000)
            refused_before = failed_changes(admin)
            change = pool.submit(coll_mod, ranged, validator={"b": 1})
            eventually(lambda: failed_changes(admin) > refused_before, what="sh1 has refused the change")
            assert options(mini, ranged, "sh0")["validator"] == {"b": 1}
        finally:
            admin.command("configureFailPoint", HANGING_BUILD, mode="off")
        build.result(60)
        assert change.result(60)["ok"] == 1.0
    assert options(mini, ranged, "sh1")["validator"] == {"b": 1}
    assert may_migrate(ranged)
