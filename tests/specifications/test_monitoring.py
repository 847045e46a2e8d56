"""The Server Discovery and Monitoring specification's tests, on the pure state of a replica set."""

from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import pytest

from shardwright.wire.topology import ApplicationError, Failure, Server, Topology, after_application_error
from tests.specifications.scenarios import load, scenarios

SKIPPED: Final = {
    "load-balanced/": "no load balancers: shards and config servers are replica sets",
    "sharded/": "no routers are followed: shards and config servers are replica sets",
    "single/": "no standalones are followed: shards and config servers are replica sets",
    "unified/": "needs a driver's API on a running deployment",
}

FAILURES: Final = {"command": Failure.COMMAND, "network": Failure.NETWORK, "timeout": Failure.TIMEOUT}


@pytest.mark.parametrize("path", scenarios("discovery_and_monitoring", SKIPPED))
def test_monitoring(path: Path) -> None:
    scenario = load(path)
    topology = initial(scenario["uri"])
    for phase in scenario["phases"]:
        for address, hello in phase.get("responses", ()):
            topology = after_response(topology, address, hello)
        for error in phase.get("applicationErrors", ()):
            topology = after_error(topology, error)
        assert summary(topology, phase["outcome"]) == expected(phase["outcome"]), phase.get("description")


def initial(uri: str) -> Topology:
    parts = urlsplit(uri)
    (set_name,) = parse_qs(parts.query).get("replicaSet", [None])
    return Topology.of(set_name, [with_port(host) for host in parts.netloc.split(",")])


def with_port(host: str) -> str:
    return host if host.rpartition(":")[2].isdecimal() and not host.endswith("]") else f"{host}:27017"


def after_response(topology: Topology, address: str, hello: dict[str, Any]) -> Topology:
    if not hello:
        return topology.after_failed_check(address.lower(), "no answer")
    return topology.after_hello(Server.from_hello(address.lower(), hello))


def after_error(topology: Topology, error: dict[str, Any]) -> Topology:
    response = error.get("response", {})
    return after_application_error(
        topology,
        ApplicationError(
            error["address"],
            FAILURES[error["type"]],
            code=0 if response.get("ok") else response.get("code", 0),
            topology_version=response.get("topologyVersion"),
            generation=error.get("generation"),
            is_after_handshake=error["when"] == "afterHandshakeCompletes",
            wire_version=error["maxWireVersion"],
        ),
    )


def summary(topology: Topology, outcome: dict[str, Any]) -> dict[str, Any]:
    """The state in the words of an outcome, as far as it speaks of it."""
    everything = {
        "topologyType": topology.type.value,
        "setName": topology.set_name,
        "logicalSessionTimeoutMinutes": topology.session_timeout_minutes,
        "compatible": topology.is_compatible,
        "maxSetVersion": topology.newest_election.set_version,
        "maxElectionId": topology.newest_election.election_id,
    }
    servers = outcome["servers"]
    assert topology.servers.keys() == {address.lower() for address in servers}
    return {name: value for name, value in everything.items() if name in outcome} | {
        "servers": {
            address: server_summary(topology.servers[address.lower()], wanted) for address, wanted in servers.items()
        }
    }


def server_summary(server: Server, wanted: dict[str, Any]) -> dict[str, Any]:
    everything = {
        "type": server.type.value,
        "setName": server.set_name,
        "setVersion": server.set_version,
        "electionId": server.election_id,
        "topologyVersion": server.topology_version,
        "pool": {"generation": server.pool_generation},
        "error": server.error,
    }
    return {name: everything[name] for name in wanted if name not in LOG_ONLY}


LOG_ONLY: Final = {"minWireVersion", "maxWireVersion"}


def expected(outcome: dict[str, Any]) -> dict[str, Any]:
    def plain(value: Any) -> Any:  # noqa: ANN401 - any value of an outcome
        if isinstance(value, dict):
            return {name: plain(each) for name, each in value.items() if name not in LOG_ONLY}
        return getattr(value, "binary", value)

    return {
        name: plain(value)
        if name != "servers"
        else {address: plain_server(each, plain) for address, each in value.items()}
        for name, value in outcome.items()
    }


def plain_server(server: dict[str, Any], plain: Any) -> dict[str, Any]:  # noqa: ANN401
    return {
        name: value if name == "topologyVersion" else plain(value)
        for name, value in server.items()
        if name not in LOG_ONLY
    }
