"""``_configsvrFinishUpgrade``: the feature version is raised on purpose, when all daemons know the new one."""

import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from bson.int64 import Int64
from pymongo.errors import OperationFailure
from trio.testing import MockClock

from shardwright.config_servers.catalog_client import CatalogClient
from shardwright.configd.catalog.catalog import (
    check_feature_version,
    follow_feature_version,
    read_feature_version,
)
from shardwright.configd.term.shard_clients import handshake
from shardwright.daemon.process_environment import EXIT_NEED_DOWNGRADE, UnfitClusterError
from shardwright.deploy.errors import DeployError
from shardwright.deploy.ports import PortReservation
from shardwright.deploy.upgrade import finish_upgrade
from shardwright.router import service
from shardwright.router.service import MongosRegistration
from shardwright.sharding.clock import VectorClock
from shardwright.sharding.feature_version import NEWEST, router_fields, router_knows
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.host_and_port import ConnectionString
from shardwright.wire.transport.monitor import ReplicaSetMonitor
from shardwright.wire.transport.pool import ConnectionPools
from shardwright.wire.transport.replica_set import ReplicaSetClient
from tests.configd.catalog_user import CatalogUser
from tests.configd.fake_shard import FakeShard, fake_shards
from tests.configd.in_process import InProcess
from tests.configd.test_time_limits import SHARD_LIMIT_MS, run_in_process, slow_down
from tests.integration.waiting import eventually
from tests.shardd.mini_cluster import Member, Set
from tests.transports import new_transport

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
    catalog.config.mongos.insert_one({"_id": "here:1", "ping": now, "created": now, **router_fields(now)})
    reply = catalog.run({**COMMAND, "dryRun": True})
    assert (reply["featureVersion"], reply["newest"], reply["obstacles"]) == (1, NEWEST, [])
    assert version(versions) == 1
    assert catalog.run(COMMAND)["featureVersion"] == NEWEST
    assert version(versions) == NEWEST
    [change] = catalog.config.changelog.find({"what": "finishUpgrade"}).sort("time", -1).limit(1)
    assert change["details"] == {"from": 1, "to": NEWEST}


@pytest.mark.usefixtures("versions")
def test_a_time_limit_does_not_keep_a_raised_version_from_the_log(catalog: CatalogUser, config_set: Set) -> None:
    before = catalog.config.changelog.count_documents({"what": "finishUpgrade"})

    async def body(server: InProcess) -> None:
        slow_down(server, SHARD_LIMIT_MS)
        assert await server.run({**COMMAND, "maxTimeMS": SHARD_LIMIT_MS})

    run_in_process(config_set, body)
    assert catalog.config.changelog.count_documents({"what": "finishUpgrade"}) == before + 1


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


def test_a_hidden_member_prevents_it(
    catalog: CatalogUser,
    shards: dict[str, FakeShard],
    versions: Any,  # noqa: ANN401 - a collection
) -> None:
    with fake_shards("hidden") as fakes:
        hidden = fakes["hidden"].address
        fakes["hidden"].hello["extensions"] = ["involvedNamespaces"]
        shards["a"].members = [{"host": each, "hidden": True} for each in ("mongod:1", "mongod:2")]
        shards["a"].found["sidecars"] = [{"_id": "mongod:1", "sidecar": hidden}]
        try:
            reply = catalog.run({**COMMAND, "dryRun": True})
        finally:
            shards["a"].members.clear()
            shards["a"].found.clear()
    assert sorted(reply["obstacles"]) == sorted(
        [
            f"{hidden} does not know feature version {NEWEST}; upgrade and restart it",
            "mongod:2 cannot be reached (no daemon has registered for this mongod)",
        ]
    )
    support = {each["name"]: each.get("newest") for each in reply["daemons"]}
    assert support[hidden] == 1
    assert support[shards["a"].address] == support[shards["b"].address] == NEWEST
    assert version(versions) == 1


@pytest.mark.usefixtures("versions")
def test_a_router_is_counted_by_its_pings_and_not_by_its_clock(catalog: CatalogUser) -> None:
    """The entries of older routers have the time of their own clocks."""
    now = datetime.now(UTC)
    ahead, behind = now + timedelta(hours=1), now - timedelta(hours=1)
    catalog.config.mongos.insert_many(
        [
            {"_id": "gone:1", "ping": ahead, "created": ahead},
            {"_id": "late:1", "ping": behind, "created": behind},
            {"_id": "wrong:1", "ping": Int64(0)},
        ]
    )
    with ThreadPoolExecutor() as threads:
        reply = threads.submit(catalog.run, {**COMMAND, "dryRun": True})
        number = 0
        while not reply.done():
            number += 1
            catalog.config.mongos.update_one({"_id": "late:1"}, {"$set": {"ping": behind + timedelta(seconds=number)}})
            wait([reply], timeout=0.5)
    assert [each.partition(" does")[0] for each in reply.result()["obstacles"]] == ["the router late:1"]


@pytest.mark.parametrize("fields", [{"featureVersions": 2}, {"featureVersions": {"oldest": "1", "newest": 2}}])
@pytest.mark.usefixtures("versions")
def test_a_malformed_entry_of_a_router_prevents_it(catalog: CatalogUser, fields: dict[str, Any]) -> None:
    catalog.config.mongos.insert_one({"_id": "odd:1", "ping": datetime.now(UTC), **fields})
    [obstacle] = catalog.run({**COMMAND, "dryRun": True})["obstacles"]
    start = "the router odd:1 does not say which feature versions it knows (config.mongos {_id: 'odd:1'} is malformed"
    assert obstacle.startswith(start)


@pytest.mark.parametrize("wrong", ["2", 2.5, True, 0, None, [2]])
def test_a_malformed_feature_version_is_named(catalog: CatalogUser, versions: Any, wrong: object) -> None:  # noqa: ANN401
    versions.replace_one(QUERY, {"version": wrong}, upsert=True)
    with fake_shards("unfit") as fakes:
        for command in (COMMAND, {"_configsvrAddShard": fakes["unfit"].connection_string}):
            with pytest.raises(OperationFailure, match=r"admin\.system\.version {_id: 'featureVersion'} is malformed"):
                catalog.run(command)


@pytest.mark.parametrize("ahead", [timedelta(hours=1), timedelta(hours=-1)])
def test_a_router_writes_the_time_of_the_config_servers(
    config_set: Set, catalog: CatalogUser, monkeypatch: pytest.MonkeyPatch, ahead: timedelta
) -> None:
    find = catalog.config.mongos.find_one

    async def main() -> None:
        pools = ConnectionPools(new_transport(), handshake)
        hosts = ConnectionString.parse(config_set.connection_string)
        monitor = ReplicaSetMonitor(hosts.set_name, hosts.addresses, handshake, pools)
        client = CatalogClient(ReplicaSetClient(monitor, pools), VectorClock())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pools.run)
            nursery.start_soon(monitor.run)
            nursery.start_soon(MongosRegistration(client, "wrong:1").run)
            entry = await trio.to_thread.run_sync(lambda: eventually(lambda: find({"_id": "wrong:1"}), within=30))
            nursery.cancel_scope.cancel()
        names = "_id advisoryHostFQDNs created mongoVersion ping up waiting featureVersions"
        assert list(entry) == names.split()
        now = datetime.now(UTC).replace(tzinfo=None)
        assert abs(entry["created"] - now - ahead) < timedelta(minutes=1)
        assert abs(entry["ping"] - now) < timedelta(minutes=1)
        assert router_knows(entry, NEWEST)

    clock = SimpleNamespace(now=lambda zone: datetime.now(zone) + ahead)
    monkeypatch.setattr(service, "datetime", clock)
    try:
        trio.run(main)
    finally:
        catalog.config.mongos.delete_one({"_id": "wrong:1"})


class RaisedMeanwhile:
    """A mongod whose version is raised by another primary after a number of reads; one read fails."""

    def __init__(self, reads: int) -> None:
        self._reads = reads

    async def command(self, db: str, command: Mapping[str, Any]) -> dict[str, Any]:
        assert (db, command["find"]) == ("admin", "system.version")
        self._reads -= 1
        if self._reads == 0:
            raise CommandError(ErrorCode.NotPrimaryOrSecondary, "in recovery")
        return {"cursor": {"id": 0, "firstBatch": [{**QUERY, "version": NEWEST + (self._reads < 0)}]}}


def test_a_config_daemon_ends_soon_after_the_version_was_raised() -> None:
    async def main() -> None:
        began = trio.current_time()
        with pytest.raises(UnfitClusterError, match="install the newer release"):
            await follow_feature_version(RaisedMeanwhile(2))
        assert 30 < trio.current_time() - began < 40

    trio.run(main, clock=MockClock(autojump_threshold=0))


def test_a_new_primary_reads_a_version_that_it_does_not_know_to_be_on_a_majority() -> None:
    class AfterElection:
        """The mongod of a primary that has not committed a write in its term."""

        async def command(self, db: str, command: Mapping[str, Any]) -> dict[str, Any]:
            is_newest = command["readConcern"]["level"] == "local"
            return {"cursor": {"id": 0, "firstBatch": [{**QUERY, "version": NEWEST + is_newest}]}}

    with pytest.raises(UnfitClusterError, match="install the newer release"):
        trio.run(check_feature_version, AfterElection())


def test_a_command_refuses_a_newer_version_until_the_daemon_ends() -> None:
    async def main() -> None:
        with pytest.raises(CommandError, match="install the newer release") as refused:
            await read_feature_version(RaisedMeanwhile(0))
        assert refused.value.code == ErrorCode.IncompatibleServerVersion

    trio.run(main)


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
    assert completed.returncode == EXIT_NEED_DOWNGRADE
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
    assert completed.returncode == EXIT_NEED_DOWNGRADE, completed.stderr
    assert f"the feature version of the cluster is {NEWEST + 1}" in completed.stderr
    assert catalog.run({**COMMAND, "dryRun": True})["featureVersion"] == NEWEST


_AS_BEFORE = """
import sys
from shardwright.sharding import feature_version
feature_version.NEWEST = 1
feature_version.EXTENSIONS = ("involvedNamespaces",)
from shardwright.configd.main import main
sys.exit(main())
"""
_WITHOUT_THE_COMMAND = """
from shardwright.configd.commands import config_commands
table = config_commands.CONFIG_COMMANDS
config_commands.CONFIG_COMMANDS = type(table)(each for each in table if each.name != "_configsvrFinishUpgrade")
"""


@pytest.mark.parametrize("program", [_AS_BEFORE, _AS_BEFORE.replace("sys.exit", f"{_WITHOUT_THE_COMMAND}sys.exit")])
@pytest.mark.usefixtures("versions")
def test_a_router_names_a_config_server_of_an_older_release(
    config_set: Set, shards: dict[str, FakeShard], program: str
) -> None:
    [member] = config_set.members
    arguments = member.daemon.arguments
    port = free_port()
    router = [sys.executable, "-P", "-m", "shardwright.router.main", "--port", str(port)]
    member.daemon.stop()
    member.daemon.arguments = [arguments[0], "-c", program, *arguments[3:]]
    member.daemon.start()
    try:
        member.wait_ready()
        with subprocess.Popen([*router, "--configdb", config_set.connection_string]) as running:
            try:
                reply = finish_upgrade(
                    f"mongodb://127.0.0.1:{port}/?serverSelectionTimeoutMS=60000", {}, is_dry_run=True
                )
                with pytest.raises(DeployError) as refused:
                    finish_upgrade(f"mongodb://127.0.0.1:{port}", {})
            finally:
                running.kill()
    finally:
        member.daemon.stop()
        member.daemon.arguments = arguments
        member.daemon.start()
        member.wait_ready()
    obstacle = f"{member.address} does not know feature version {NEWEST}; upgrade and restart it"
    assert (reply["featureVersion"], reply["newest"], reply["obstacles"]) == (1, NEWEST, [obstacle])
    support = {each["name"]: each["newest"] for each in reply["daemons"]}
    assert support[member.address] == 1
    assert support[shards["a"].address] == support[f"router 127.0.0.1:{port}"] == NEWEST
    assert f"the feature version of the cluster stays 1: {obstacle}" in str(refused.value)


def free_port() -> int:
    """A port that several processes can share."""
    with PortReservation() as ports:
        return ports.hold_free()


def started(member: Member) -> subprocess.CompletedProcess[str]:
    """The daemon of a member, started and run until it ends."""
    return subprocess.run(member.daemon.arguments, capture_output=True, text=True, timeout=60, check=False)
