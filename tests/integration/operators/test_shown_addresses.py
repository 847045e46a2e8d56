"""A daemon names itself and the other daemons wherever its mongod names itself and the members of its set."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import pytest
from bson.json_util import dumps

from tests.integration.waiting import eventually
from tests.local_cluster import Client, RunningCluster, running_cluster

_ANY: Final[dict[str, Any]] = {"cursor": {}}
_COMMANDS: Final[list[tuple[str, dict[str, Any]]]] = [
    ("admin", {"hello": 1}),
    ("admin", {"isMaster": 1}),
    ("admin", {"serverStatus": 1}),
    ("admin", {"serverStatus": 1, "repl": 1}),
    ("admin", {"replSetGetStatus": 1}),
    ("admin", {"replSetGetStatus": 1, "initialSync": 1}),
    ("admin", {"replSetGetConfig": 1}),
    ("admin", {"hostInfo": 1}),
    ("admin", {"getDiagnosticData": 1}),
    ("admin", {"currentOp": 1, "$all": True}),
    ("admin", {"currentOp": 1, "$ownOps": True}),
    ("admin", {"aggregate": 1, "pipeline": [{"$currentOp": {"allUsers": True, "idleConnections": True}}], **_ANY}),
    ("shown", {"explain": {"find": "c"}}),
    ("shown", {"explain": {"aggregate": "c", "pipeline": [], **_ANY}}),
    ("shown", {"aggregate": "c", "pipeline": [{"$match": {"a": 1}}], "explain": True}),
    ("shown", {"aggregate": "c", "pipeline": [{"$indexStats": {}}], **_ANY}),
    ("shown", {"aggregate": "c", "pipeline": [{"$indexStats": {}}, {"$group": {"_id": "$host"}}], **_ANY}),
    ("shown", {"aggregate": "c", "pipeline": [{"$collStats": {"storageStats": {}}}], **_ANY}),
    ("shown", {"aggregate": "c", "pipeline": [{"$planCacheStats": {}}], **_ANY}),
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    with running_cluster(tmp_path_factory.mktemp("shown"), "--shards", "1", "--members", "2") as running:
        for client in (running.client(), running.direct("config.0.configd")):
            with client:
                client["shown"]["c"].create_index("a")
                client["shown"]["c"].create_index([("a", 1), ("b", 1)])
                client["shown"]["c"].insert_many([{"a": number, "b": 1} for number in range(10)])
                list(client["shown"]["c"].find({"a": 1, "b": 1}))
        yield running


def mongod_ports(cluster: RunningCluster) -> set[str]:
    return {each["address"].rpartition(":")[2] for each in cluster.document["processes"] if each["role"] == "mongod"}


UNIX_CLIENT: Final = "anonymous unix socket:27017"
"""Name of each client of a mongod's UNIX socket, also where another mongod listens on 27017."""


def named_ports(reply: Any, ports: set[str]) -> set[str]:  # noqa: ANN401 - any value of BSON
    """The ports in a reply that are of mongods."""
    if reply == UNIX_CLIENT:
        return set()
    if isinstance(reply, Mapping):
        return set().union(*(named_ports(value, ports) for value in reply.values()))
    if isinstance(reply, list):
        return set().union(*(named_ports(value, ports) for value in reply))
    return {port for port in ports if str(reply) == port or (isinstance(reply, str) and reply.endswith(f":{port}"))}


@pytest.mark.parametrize(
    ("db", "command"), _COMMANDS, ids=lambda value: value if isinstance(value, str) else str(value)[:70]
)
@pytest.mark.parametrize("daemon", ["shard0.0.shardd", "shard0.1.shardd", "config.0.configd", "router.0"])
def test_no_reply_has_the_address_of_a_mongod(
    cluster: RunningCluster, daemon: str, db: str, command: dict[str, Any]
) -> None:
    name = next(iter(command))
    if daemon.startswith("router") and name.startswith("replSet"):
        pytest.skip("a router has no replica set")
    with cluster.direct(daemon, readPreference="secondaryPreferred") as client:
        reply = client[db].command(command)
    assert not named_ports(reply, mongod_ports(cluster)), dumps(reply)


def test_members_are_daemons(cluster: RunningCluster) -> None:
    daemons = [cluster.address(f"shard0.{index}.shardd") for index in range(2)]
    with cluster.direct("shard0.0.shardd") as client:
        status = client.admin.command("replSetGetStatus")
        config = client.admin.command("replSetGetConfig")["config"]
        server = client.admin.command("serverStatus")
    assert [member["name"] for member in status["members"]] == daemons
    assert [member["host"] for member in config["members"]] == daemons
    assert sorted(server["repl"]["hosts"]) == sorted(daemons)
    assert (server["host"], server["repl"]["me"]) == (daemons[0], daemons[0])


@pytest.mark.parametrize(("daemon", "count"), [("shard0.0.shardd", 2), ("shard0.1.shardd", 2), ("config.0.configd", 1)])
def test_the_stored_configuration_names_daemons(cluster: RunningCluster, daemon: str, count: int) -> None:
    name, _, role = daemon.split(".")
    daemons = [cluster.address(f"{name}.{index}.{role}") for index in range(count)]
    with cluster.direct(daemon, readPreference="secondaryPreferred") as client:
        stored = client.local["system.replset"]
        assert [member["host"] for document in stored.find() for member in document["members"]] == daemons
        assert stored.find_one({}, {"_id": 1}) == {"_id": name}
        assert list(stored.find({"_id": "another"})) == []


def test_explain_through_a_router_names_the_daemon(cluster: RunningCluster, client_of_cluster: Client) -> None:
    reply = client_of_cluster["shown"].command({"explain": {"find": "c"}})
    (shard,) = reply["queryPlanner"]["winningPlan"]["shards"]
    info = shard["serverInfo"]
    assert f"{info['host']}:{info['port']}" in {cluster.address(f"shard0.{index}.shardd") for index in range(2)}
    assert f"{reply['serverInfo']['host']}:{reply['serverInfo']['port']}" == cluster.address("router.0")


def test_a_configuration_that_was_read_can_be_changed_and_sent_back(cluster: RunningCluster) -> None:
    def primary() -> str | None:
        for index in range(2):
            with cluster.direct(f"shard0.{index}.shardd") as client:
                if client.admin.command("hello")["isWritablePrimary"]:
                    return f"shard0.{index}.shardd"
        return None

    with cluster.direct(eventually(primary, within=30, what="a primary")) as client:
        config = client.admin.command("replSetGetConfig")["config"]
        config["version"] += 1
        config["members"][1]["tags"] = {"place": "here"}
        client.admin.command("replSetReconfig", config)
        assert client.admin.command("replSetGetConfig")["config"]["members"] == config["members"]
    with cluster.direct("shard0.0.mongod") as mongod:
        members = mongod.admin.command("replSetGetConfig")["config"]["members"]
    assert [each["host"] for each in members] == [cluster.address(f"shard0.{index}.mongod") for index in range(2)]
    with cluster.direct("shard0.1.shardd") as client:
        source = client.admin.command("replSetGetStatus")["members"]
        other = cluster.address("shard0.0.shardd")
        if next(each for each in source if each["name"] != other)["stateStr"] == "SECONDARY":
            assert client.admin.command("replSetSyncFrom", other)["syncFromRequested"] == other


@pytest.mark.parametrize(("daemon", "role"), [("shard0.0.shardd", "shardsvr"), ("config.0.configd", "configsvr")])
def test_the_command_line_has_the_role_in_the_cluster(cluster: RunningCluster, daemon: str, role: str) -> None:
    with cluster.direct(daemon) as client:
        assert client.admin.command("getCmdLineOpts")["parsed"]["sharding"] == {"clusterRole": role}


def test_a_router_says_how_much_virtual_memory_it_has(client_of_cluster: Client) -> None:
    memory = client_of_cluster.admin.command("serverStatus")["mem"]
    assert memory["virtual"] > memory["resident"] > 0


@pytest.fixture
def client_of_cluster(cluster: RunningCluster) -> Iterator[Client]:
    with cluster.client() as client:
        yield client
