"""``_configsvrFinishUpgrade``: the feature version is raised on purpose, when all daemons know the new one."""

import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pymongo.errors import OperationFailure

from shardwright.daemon.unfit_cluster import EXIT_CODE
from shardwright.deploy.ports import PortReservation
from shardwright.sharding.feature_version import NEWEST, router_fields
from shardwright.wire.error_codes import ErrorCode
from tests.configd.catalog_user import CatalogUser
from tests.configd.fake_shard import FakeShard, fake_shards
from tests.shardd.mini_cluster import Member, Set

COMMAND = {"_configsvrFinishUpgrade": 1}
QUERY = {"_id": "featureVersion"}


@pytest.fixture
def versions(config_set: Set, catalog: CatalogUser) -> Iterator[Any]:
    """The collection that holds the feature version, set to the first one, and afterwards to the newest."""
    with config_set.members[0].mongod_client() as mongod:
        collection = mongod.admin["system.version"]
        collection.delete_one(QUERY)
        yield collection
        collection.replace_one(QUERY, {"version": NEWEST}, upsert=True)
        catalog.config.mongos.delete_many({})


def version(versions: Any) -> int:  # noqa: ANN401 - a collection
    document = versions.find_one(QUERY)
    return 1 if document is None else int(document["version"])


def test_a_new_cluster_has_the_newest_version(catalog: CatalogUser, config_set: Set) -> None:
    with config_set.members[0].mongod_client() as mongod:
        assert version(mongod.admin["system.version"]) == NEWEST
    reply = catalog.run(COMMAND)
    assert (reply["featureVersion"], reply["newest"]) == (NEWEST, NEWEST)


def test_it_is_raised_when_all_know_it(catalog: CatalogUser, versions: Any) -> None:  # noqa: ANN401 - a collection
    now = datetime.now(UTC)
    gone = {"_id": "gone:1", "ping": now - timedelta(hours=1), "created": now}
    catalog.config.mongos.insert_many([gone, {"_id": "here:1", "ping": now, "created": now, **router_fields(now)}])
    reply = catalog.run({**COMMAND, "dryRun": True})
    assert (reply["featureVersion"], reply["newest"], reply["obstacles"]) == (1, NEWEST, [])
    assert version(versions) == 1
    assert catalog.run(COMMAND)["featureVersion"] == NEWEST
    assert version(versions) == NEWEST
    [change] = catalog.config.changelog.find({"what": "finishUpgrade"}).sort("time", -1).limit(1)
    assert change["details"] == {"from": 1, "to": NEWEST}


def test_a_daemon_of_the_release_before_prevents_it(
    catalog: CatalogUser,
    shards: dict[str, FakeShard],
    versions: Any,  # noqa: ANN401 - a collection
) -> None:
    shards["b"].hello["extensions"] = ["involvedNamespaces"]
    now = datetime.now(UTC)
    catalog.config.mongos.insert_one({"_id": "older:1", "ping": now, "created": now})
    try:
        with pytest.raises(OperationFailure) as refused:
            catalog.run(COMMAND)
        obstacles = catalog.run({**COMMAND, "dryRun": True})["obstacles"]
    finally:
        del shards["b"].hello["extensions"]
    assert refused.value.code == ErrorCode.IncompatibleServerVersion
    assert obstacles == [
        f"{shards['b'].address} does not know feature version {NEWEST}; upgrade and restart it",
        f"the router older:1 does not know feature version {NEWEST}; upgrade it, or stop it and wait 60 s",
    ]
    assert all(each in str(refused.value) for each in obstacles)
    assert version(versions) == 1


def test_a_daemon_that_cannot_be_reached_prevents_it(catalog: CatalogUser, versions: Any) -> None:  # noqa: ANN401 - a collection
    gone = {"_id": "gone", "host": "gone/127.0.0.1:1", "state": 1}
    catalog.config.shards.insert_one(gone)
    try:
        [obstacle] = catalog.run({**COMMAND, "dryRun": True})["obstacles"]
    finally:
        catalog.config.shards.delete_one(gone)
    assert obstacle.startswith("127.0.0.1:1 cannot be reached (")
    assert version(versions) == 1


def test_a_shard_of_the_release_before_is_not_added_afterwards(catalog: CatalogUser) -> None:
    with fake_shards("older_release") as fakes:
        fakes["older_release"].hello["extensions"] = ["involvedNamespaces"]
        with pytest.raises(OperationFailure, match=f"does not know the cluster's feature version {NEWEST}; install"):
            catalog.run({"_configsvrAddShard": fakes["older_release"].connection_string})


def test_a_config_daemon_refuses_a_newer_cluster(config_set: Set, catalog: CatalogUser) -> None:
    [member] = config_set.members
    with member.mongod_client() as mongod:
        collection = mongod.admin["system.version"]
        member.daemon.stop()
        try:
            collection.update_one(QUERY, {"$set": {"version": NEWEST + 1}})
            completed = started(member)
        finally:
            collection.update_one(QUERY, {"$set": {"version": NEWEST}})
            member.daemon.start()
            member.wait_ready()
    assert completed.returncode == EXIT_CODE
    assert f"the feature version of the cluster is {NEWEST + 1}" in completed.stderr
    assert "install the newer release" in completed.stderr
    assert "Traceback" not in completed.stderr + completed.stdout
    assert catalog.run({**COMMAND, "dryRun": True})["featureVersion"] == NEWEST


@pytest.mark.parametrize("workers", [1, 2])
def test_a_router_refuses_a_newer_cluster(config_set: Set, catalog: CatalogUser, workers: int) -> None:
    [member] = config_set.members
    options = ["--port", str(free_port()), "--workers", str(workers), "--configdb", config_set.connection_string]
    words = [sys.executable, "-P", "-m", "shardwright.router.main", *options]
    with member.mongod_client() as mongod:
        collection = mongod.admin["system.version"]
        collection.update_one(QUERY, {"$set": {"version": NEWEST + 1}})
        try:
            completed = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
        finally:
            collection.update_one(QUERY, {"$set": {"version": NEWEST}})
    assert completed.returncode == EXIT_CODE, completed.stderr
    assert f"the feature version of the cluster is {NEWEST + 1}" in completed.stderr
    assert catalog.run({**COMMAND, "dryRun": True})["featureVersion"] == NEWEST


def free_port() -> int:
    """A port that several processes can share."""
    with PortReservation() as ports:
        return ports.hold_free()


def started(member: Member) -> subprocess.CompletedProcess[str]:
    """The daemon of a member, started and run until it ends."""
    return subprocess.run(member.daemon.arguments, capture_output=True, text=True, timeout=60, check=False)
