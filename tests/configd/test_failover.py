"""Config servers of several members: the primary runs commands, the others answer reads and refuse writes."""

import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
from bson.max_key import MaxKey
from bson.min_key import MinKey
from pymongo import MongoClient
from pymongo.errors import AutoReconnect, NotPrimaryError, OperationFailure
from pymongo.read_preferences import Nearest
from pymongo.write_concern import WriteConcern

from shardwright.wire.error_codes import ErrorCode
from tests.configd.balancing import SizedShard
from tests.configd.catalog_user import GOSSIP, MAJORITY, CatalogUser
from tests.configd.fake_shard import FakeShard, fake_shards, serving
from tests.integration.waiting import eventually
from tests.shardd.mini_cluster import Set, replica_set


@pytest.fixture(scope="module")
def trio_set(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Set]:
    """Three members."""
    with replica_set(tmp_path_factory.mktemp("config-failover"), members=3, daemon="configd") as running:
        yield running


def test_config_servers_survive_a_step_down(trio_set: Set) -> None:
    with fake_shards("a", "b") as shards, trio_set.client(retryWrites=False) as client:
        catalog = CatalogUser(client)
        for shard in shards.values():
            catalog.run({"_configsvrAddShard": shard.connection_string})
        sharded = catalog.shard_collection("failover.c")
        catalog.split(sharded, MinKey(), MaxKey(), 0)

        primary = client.primary
        assert primary is not None
        # A client that was connected to the old primary is disconnected or gets a not-primary error.
        with suppress(AutoReconnect):
            client.admin.command({"replSetStepDown": 30, "secondaryCatchUpPeriodSecs": 20})
        run_on_new_primary(catalog, {"_configsvrCreateDatabase": "after", "primaryShardId": "a"})
        assert client.primary != primary

        catalog.split(sharded, 0, MaxKey(), 5)
        catalog.move(sharded, 0, 5, "a", "b")
        assert [shard for _, _, shard, _ in catalog.bounds(sharded)] == ["a", "b", "a"]
        assert client.config.version.count_documents({}) == 1


def test_a_move_request_is_repeated_by_the_next_primary(trio_set: Set) -> None:
    with (
        fake_shards("c", "d") as shards,
        trio_set.client(retryWrites=False) as client,
        trio_set.client(retryWrites=False) as other,
        ThreadPoolExecutor() as movers,
    ):
        donor, catalog = shards["c"], CatalogUser(client)
        for shard in shards.values():
            run_on_new_primary(catalog, {"_configsvrAddShard": shard.connection_string})
        sharded = catalog.shard_collection("failover.moving", [(MinKey(), MaxKey(), "c")])
        move = {"_configsvrMoveRange": sharded.namespace, "toShard": "d", "min": {"x": 0}}
        moved = donor.held["_shardsvrMoveRange"] = threading.Event()
        try:
            interrupted = movers.submit(catalog.run, move)
            wait_for_requests(donor, 1)
            with suppress(AutoReconnect):
                other.admin.command({"replSetStepDown": 30, "secondaryCatchUpPeriodSecs": 20})
            # Drivers and routers retry after this.
            assert isinstance(interrupted.exception(30), AutoReconnect)
            repeated = movers.submit(run_on_new_primary, CatalogUser(other), move)
            wait_for_requests(donor, 2)
        finally:
            moved.set()
        repeated.result(30)
        first, second = donor.received("_shardsvrMoveRange")
        gossip = (*GOSSIP, "lsid")
        assert [{name: value for name, value in each.items() if name not in gossip} for each in (first, second)] == [
            {name: value for name, value in first.items() if name not in gossip}
        ] * 2


def test_the_next_primary_goes_on_balancing(trio_set: Set) -> None:
    """In the middle of a round: it decides again, and the donor gets the same request a second time."""
    with (
        serving(SizedShard, "e", "f") as shards,
        trio_set.client(retryWrites=False) as client,
        trio_set.client(retryWrites=False) as other,
    ):
        donor, catalog = shards["e"], CatalogUser(client)
        for name in ("shards", "collections", "chunks"):  # of other tests
            client.config[name].delete_many({})
        for shard in shards.values():
            run_on_new_primary(catalog, {"_configsvrAddShard": shard.connection_string})
        catalog.shard_collection("failover.uneven", [(MinKey(), MaxKey(), "e")])
        donor.sizes["failover.uneven"] = 1 << 30
        moved = donor.held["_shardsvrMoveRange"] = threading.Event()
        client.admin.command({"_configsvrBalancerStart": 1})
        thaw(trio_set)
        try:
            wait_for_requests(donor, 1)
            with suppress(AutoReconnect):
                other.admin.command({"replSetStepDown": 30, "secondaryCatchUpPeriodSecs": 20})
            wait_for_requests(donor, 2)
        finally:
            moved.set()
            run_on_new_primary(CatalogUser(other), {"_configsvrBalancerStop": 1}, write_concern=None)
        first, second = donor.moves[:2]
        gossip = (*GOSSIP, "lsid")
        assert [value for name, value in first.items() if name not in gossip] == [
            value for name, value in second.items() if name not in gossip
        ]


def test_a_version_that_was_half_set_is_set_by_the_next_primary(trio_set: Set) -> None:
    version = "setFeatureCompatibilityVersion"
    with (
        fake_shards("g", "h") as shards,
        trio_set.client(retryWrites=False) as client,
        trio_set.client(retryWrites=False) as other,
        ThreadPoolExecutor() as callers,
    ):
        slow, catalog = shards["g"], CatalogUser(client)
        client.config.shards.delete_many({})  # of other tests
        for shard in shards.values():
            run_on_new_primary(catalog, {"_configsvrAddShard": shard.connection_string})
        for shard in shards.values():
            shard.commands.clear()  # the versions that they had to take over
        thaw(trio_set)
        answered = slow.held[version] = threading.Event()
        try:
            interrupted = callers.submit(catalog.run, {version: "5.0"})
            with slow.arrived:
                assert slow.arrived.wait_for(lambda: slow.received(version), 30)
            with suppress(AutoReconnect):
                other.admin.command({"replSetStepDown": 30, "secondaryCatchUpPeriodSecs": 20})
            assert isinstance(interrupted.exception(30), AutoReconnect)
        finally:
            answered.set()
        # The request that is repeated is another one: the last word counts on all servers.
        run_on_new_primary(CatalogUser(other), {version: "6.0"})
        assert [shard.received(version)[-1][version] for shard in shards.values()] == ["6.0", "6.0"]
        for member in trio_set.members:
            with member.mongod_client() as mongod:
                eventually(partial(has_version, mongod, "6.0"), what="all members have the version")


def has_version(mongod: MongoClient[dict[str, Any]], version: str) -> bool:
    """Whether this is the feature compatibility version of a mongod, and no change is in progress."""
    found = mongod.admin.command("getParameter", 1, featureCompatibilityVersion=1)["featureCompatibilityVersion"]
    return bool(found == {"version": version})


def thaw(config_set: Set) -> None:
    """Allow members that have stepped down to be elected again."""
    for member in config_set.members:
        with member.mongod_client() as mongod, suppress(OperationFailure):  # on the primary
            mongod.admin.command({"replSetFreeze": 0})


def wait_for_requests(shard: FakeShard, count: int) -> None:
    """Wait until a donor has received ``count`` requests to move a range."""
    with shard.arrived:
        assert shard.arrived.wait_for(lambda: len(shard.received("_shardsvrMoveRange")) >= count, 30)


def test_secondaries_point_to_the_primary_and_answer_reads(trio_set: Set) -> None:
    with trio_set.client() as client:
        client.config.settings.with_options(write_concern=WriteConcern(w=3)).update_one(
            {"_id": "chunksize"}, {"$set": {"value": 64}}, upsert=True
        )
        secondaries = [f"{host}:{port}" for host, port in client.secondaries]
    assert len(secondaries) == 2
    for address in secondaries:
        with MongoClient[dict[str, Any]](f"mongodb://{address}/", directConnection=True) as client:
            hello = client.admin.command("hello")
            with pytest.raises(NotPrimaryError) as failure:
                CatalogUser(client).run({"_configsvrCreateDatabase": "x", "primaryShardId": "a"})
            details = failure.value.details
            assert isinstance(details, dict)
            assert (details["code"], details["errmsg"]) == (ErrorCode.NotWritablePrimary, "not primary")
            assert details["topologyVersion"] == hello["topologyVersion"]
            found = client.get_database("config", read_preference=Nearest()).settings.find_one({"_id": "chunksize"})
            assert found == {"_id": "chunksize", "value": 64}
            assert hello["secondary"] is True
            assert hello["primary"] in hello["hosts"]
            assert hello["me"] == address


def run_on_new_primary(
    catalog: CatalogUser, command: dict[str, Any], *, write_concern: Mapping[str, Any] | None = MAJORITY
) -> None:
    """Run a command as soon as there is a primary again; the driver waits for one."""
    for _ in range(20):
        try:
            catalog.run(command, write_concern=write_concern)
            return
        except AutoReconnect:  # no connection, or a not-primary error
            continue
    raise AssertionError("no new primary took over")
