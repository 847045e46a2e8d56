"""``_configsvrAddShard``."""

import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
from pymongo.errors import OperationFailure

from shardwright.configd.commands.shard_candidate import find_existing
from shardwright.sharding.catalog.documents import ShardEntry
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.host_and_port import ConnectionString
from tests.configd.catalog_user import CatalogUser
from tests.configd.fake_shard import FakeShard, fake_shards
from tests.shardd.mini_cluster import Set


@pytest.fixture
def candidate(request: pytest.FixtureRequest, catalog: CatalogUser) -> Iterator[FakeShard]:
    """A replica set that is not a shard yet, named after the test; it is removed afterwards."""
    name = re.sub(r"\W", "_", request.node.name)
    with fake_shards(name) as fakes:
        yield fakes[name]
        catalog.config.shards.delete_many({"host": fakes[name].connection_string})


def test_add_shard_inserts_it_and_sends_its_identity(
    catalog: CatalogUser, candidate: FakeShard, config_set: Set
) -> None:
    reply = catalog.run({"_configsvrAddShard": candidate.connection_string})
    assert reply == {"shardAdded": candidate.set_name, "ok": 1.0}

    entry = catalog.config.shards.find_one({"_id": candidate.set_name})
    assert entry is not None
    assert list(entry) == ["_id", "host", "state", "topologyTime"]
    assert entry["host"] == candidate.connection_string

    [identity] = [command["shardIdentity"] for command in candidate.received("_addShard")]
    version = catalog.config.version.find_one({})
    assert version is not None
    assert identity == {
        "shardName": candidate.set_name,
        "clusterId": version["clusterId"],
        "configsvrConnectionString": config_set.connection_string,
    }
    [dropped] = candidate.received("drop")
    assert (dropped["$db"], dropped["drop"]) == ("config", "system.sessions")

    [change] = catalog.config.changelog.find({"what": "addShard", "details.name": candidate.set_name})
    assert change["details"] == {"name": candidate.set_name, "host": candidate.connection_string}
    assert change["shard"] == "config"


def test_add_shard_under_a_name(catalog: CatalogUser, candidate: FakeShard) -> None:
    command = {"_configsvrAddShard": candidate.connection_string, "name": "chosen", "maxSize": 100.0}
    assert catalog.run(command)["shardAdded"] == "chosen"
    assert catalog.run(command)["shardAdded"] == "chosen"
    assert len(candidate.received("_addShard")) == 1


def test_add_shard_adds_its_databases(catalog: CatalogUser, candidate: FakeShard) -> None:
    candidate.databases = {"admin": 1, "brought": 2, "config": 3, "local": 4}
    catalog.run({"_configsvrAddShard": candidate.connection_string})
    entries = list(catalog.config.databases.find({"primary": candidate.set_name}))
    assert [entry["_id"] for entry in entries] == ["brought"]


def test_add_shard_refuses_databases_that_exist(catalog: CatalogUser, candidate: FakeShard) -> None:
    catalog.run({"_configsvrCreateDatabase": "clashing", "primaryShardId": "a"})
    candidate.databases = {"clashing": 1}
    with pytest.raises(OperationFailure, match="a local database 'clashing' exists in another a") as failure:
        catalog.run({"_configsvrAddShard": candidate.connection_string})
    assert failure.value.code == ErrorCode.OperationFailed
    assert not candidate.received("_addShard")


def test_add_shard_refuses_a_router(catalog: CatalogUser, candidate: FakeShard) -> None:
    candidate.hello = {"msg": "isdbgrid", "setName": None}
    with pytest.raises(OperationFailure, match="cannot add a mongos as a shard") as failure:
        catalog.run({"_configsvrAddShard": candidate.address})
    assert failure.value.code == ErrorCode.IllegalOperation


def test_add_shard_refuses_config_servers(catalog: CatalogUser, candidate: FakeShard) -> None:
    candidate.hello = {"configsvr": 2}
    with pytest.raises(OperationFailure, match="since it is a config server") as failure:
        catalog.run({"_configsvrAddShard": candidate.connection_string})
    assert failure.value.code == ErrorCode.OperationFailed


def test_add_shard_refuses_seeds_that_are_not_members(catalog: CatalogUser, candidate: FakeShard) -> None:
    with pytest.raises(OperationFailure, match=r"host 127\.0\.0\.1:1 does not belong to replica set") as failure:
        catalog.run({"_configsvrAddShard": f"{candidate.connection_string},127.0.0.1:1"})
    assert failure.value.code == ErrorCode.OperationFailed


def test_add_shard_can_be_repeated_after_an_interruption(catalog: CatalogUser, candidate: FakeShard) -> None:
    candidate.failures["_addShard"] = CommandError(ErrorCode.InternalError, "power is out")
    with pytest.raises(OperationFailure, match="power is out"):
        catalog.run({"_configsvrAddShard": candidate.connection_string})
    assert catalog.config.shards.find_one({"_id": candidate.set_name}) is None
    candidate.failures.clear()
    catalog.run({"_configsvrAddShard": candidate.connection_string})
    first, second = candidate.received("_addShard")
    assert first["shardIdentity"] == second["shardIdentity"]


def with_hidden_member(candidate: FakeShard, hidden: str) -> None:
    """Add a hidden member, whose daemon has registered for a mongod, to the configuration of a set."""
    candidate.members = [{"host": "mongod-of-hidden:1", "hidden": True}, {"host": "127.0.0.1:1", "arbiterOnly": True}]
    candidate.found["sidecars"] = [{"_id": "mongod-of-hidden:1", "sidecar": hidden}]


def test_add_shard_asks_hidden_members_for_their_feature_versions(catalog: CatalogUser, candidate: FakeShard) -> None:
    with fake_shards("hidden") as fakes:
        hidden = fakes["hidden"]
        with_hidden_member(candidate, hidden.address)
        hidden.hello = {"extensions": ["involvedNamespaces"]}
        with pytest.raises(OperationFailure, match=f"the daemon {hidden.address} does not know") as failure:
            catalog.run({"_configsvrAddShard": candidate.connection_string})
        assert failure.value.code == ErrorCode.IncompatibleServerVersion
        assert not candidate.received("_addShard")
        hidden.hello = {}
        catalog.run({"_configsvrAddShard": candidate.connection_string})


@pytest.mark.parametrize(
    ("daemon", "reason"),
    [("127.0.0.1:1", "127.0.0.1:1 cannot be asked .*Errno 111"), ("", "mongod-of-hidden:1 cannot .*no daemon has reg")],
    ids=["down", "without a daemon"],
)
def test_add_shard_refuses_members_that_cannot_be_asked(
    catalog: CatalogUser, candidate: FakeShard, daemon: str, reason: str
) -> None:
    with_hidden_member(candidate, daemon)
    with pytest.raises(OperationFailure, match=f"its member {reason}") as failure:
        catalog.run({"_configsvrAddShard": candidate.connection_string})
    assert failure.value.code == ErrorCode.NodeNotFound
    assert not candidate.received("_addShard")


def test_add_shard_of_a_known_set(catalog: CatalogUser, shards: dict[str, FakeShard]) -> None:
    shard = shards["a"]
    assert catalog.run({"_configsvrAddShard": shard.connection_string})["shardAdded"] == "a"
    for command, message in [
        ({"_configsvrAddShard": shard.connection_string, "name": "other"}, "already exists containing the replica set"),
        ({"_configsvrAddShard": shard.address}, "is already a member of the existing shard"),
        ({"_configsvrAddShard": f"other/{shard.address}"}, "is already a member of the existing shard"),
    ]:
        with pytest.raises(OperationFailure, match=message) as failure:
            catalog.run(command)
        assert failure.value.code == ErrorCode.IllegalOperation


def test_add_shard_without_the_name_of_its_set(catalog: CatalogUser, candidate: FakeShard) -> None:
    with pytest.raises(OperationFailure, match=r"host is part of set .*; use replica set url format") as failure:
        catalog.run({"_configsvrAddShard": candidate.address})
    assert failure.value.code == ErrorCode.OperationFailed


def test_add_shard_that_is_not_a_replica_set(catalog: CatalogUser, candidate: FakeShard) -> None:
    candidate.hello = {"setName": None, "hosts": None, "primary": None, "me": None}
    with pytest.raises(OperationFailure, match="is not a member of a replica set") as failure:
        catalog.run({"_configsvrAddShard": candidate.address})
    assert failure.value.code == ErrorCode.OperationFailed


def test_add_shard_that_is_not_reachable(catalog: CatalogUser) -> None:
    with pytest.raises(OperationFailure) as failure:
        catalog.run({"_configsvrAddShard": "127.0.0.1:1"})
    assert failure.value.code == ErrorCode.HostUnreachable


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ({"_configsvrAddShard": ""}, ErrorCode.FailedToParse),
        ({"_configsvrAddShard": "set/"}, ErrorCode.FailedToParse),
        ({"_configsvrAddShard": "set/host:port"}, ErrorCode.FailedToParse),
        ({"_configsvrAddShard": "set/host:70000"}, ErrorCode.FailedToParse),
        ({"_configsvrAddShard": "set/host:99999999999"}, ErrorCode.Overflow),
        ({"_configsvrAddShard": "one:1,two:1"}, ErrorCode.FailedToParse),
        ({"_configsvrAddShard": "set/127.0.0.1:1", "name": ""}, ErrorCode.BadValue),
        ({"_configsvrAddShard": "set/host:1"}, ErrorCode.InvalidOptions),
        ({"_configsvrAddShard": 1}, ErrorCode.TypeMismatch),
    ],
)
def test_add_shard_refuses_malformed_requests(catalog: CatalogUser, command: dict[str, Any], code: int) -> None:
    with pytest.raises(OperationFailure) as failure:
        catalog.run(command)
    assert failure.value.code == code


def test_an_entry_without_hosts_is_an_error_when_shards_are_compared() -> None:
    target = ConnectionString.parse("set/127.0.0.1:1")
    with pytest.raises(CommandError) as refused:
        find_existing(target, None, None, [ShardEntry("bad", "set/")])
    assert refused.value.code == ErrorCode.FailedToParse


def test_a_shards_hosts_follow_its_set(catalog: CatalogUser, candidate: FakeShard) -> None:
    catalog.run({"_configsvrAddShard": candidate.connection_string})
    for hosts in ([candidate.address, "127.0.0.1:1"], [candidate.address]):
        candidate.hello = {"hosts": hosts}
        deadline = time.monotonic() + 30
        while True:
            entry = catalog.config.shards.find_one({"_id": candidate.set_name})
            assert entry is not None
            if set(entry["host"].removeprefix(f"{candidate.set_name}/").split(",")) == set(hosts):
                break
            assert time.monotonic() < deadline, entry
