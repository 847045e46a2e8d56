"""The Server Selection and Max Staleness specifications' tests, on the pure state of a replica set."""

from collections import Counter
from pathlib import Path
from typing import Any, Final

import pytest

from shardwright.wire.errors import CommandError
from shardwright.wire.read_preference import (
    HEARTBEAT_SECONDS,
    PRIMARY,
    ReadPreference,
    in_latency_window,
    least_busy_of_two,
    suitable_servers,
)
from shardwright.wire.topology import Server, ServerType, Topology, smoothed_round_trip
from tests.specifications.scenarios import load, scenarios

NO_ROUTERS: Final = "no routers are followed: shards and config servers are replica sets"
NO_STANDALONES: Final = "no standalones are followed: shards and config servers are replica sets"
ZERO: Final = "a server takes maxStalenessSeconds 0 for no bound, which drivers refuse"

SELECTION_SKIPPED: Final = {
    "LoadBalanced/": "no load balancers: shards and config servers are replica sets",
    "Sharded/": NO_ROUTERS,
    "Single/": NO_STANDALONES,
}
STALENESS_SKIPPED: Final = {
    "Sharded/": NO_ROUTERS,
    "Single/": NO_STANDALONES,
    "ReplicaSetNoPrimary/ZeroMaxStaleness.json": ZERO,
    "ReplicaSetWithPrimary/ZeroMaxStaleness.json": ZERO,
}
WINDOW_SKIPPED: Final = {
    name: NO_ROUTERS
    for name in (
        "equilibrium.json",
        "many-choices.json",
        "one-least-two-tied.json",
        "three-choices.json",
        "two-choices.json",
        "two-least.json",
    )
}

WIRE_VERSIONS: Final = (0, 21)


@pytest.mark.parametrize(
    "path",
    [
        *scenarios("server_selection/server_selection", SELECTION_SKIPPED),
        *scenarios("max_staleness", STALENESS_SKIPPED),
    ],
)
def test_selection(path: Path) -> None:
    scenario = load(path)
    topology = described(scenario["topology_description"])
    if scenario.get("error"):
        with pytest.raises(CommandError):
            suitable(topology, scenario)
        return
    found = suitable(topology, scenario)
    assert addresses(found) == named(scenario.get("suitable_servers"))
    assert addresses(in_latency_window(found)) == named(scenario.get("in_latency_window"))


def suitable(topology: Topology, scenario: dict[str, Any]) -> list[Server]:
    preference = PRIMARY if scenario.get("operation") == "write" else parsed(scenario["read_preference"])
    milliseconds = scenario.get("heartbeatFrequencyMS")
    return list(
        suitable_servers(
            topology,
            preference,
            deprioritized=named(scenario.get("deprioritized_servers")),
            heartbeat_seconds=HEARTBEAT_SECONDS if milliseconds is None else milliseconds / 1_000,
        )
    )


def parsed(document: dict[str, Any]) -> ReadPreference:
    mode = document.get("mode", "Primary")
    fields = {"mode": mode[0].lower() + mode[1:], "tags": document.get("tag_sets", [])}
    staleness = document.get("maxStalenessSeconds", 0)
    if fields["mode"] == "nearest" and staleness == 1 and fields["tags"] == []:
        # Refused by `ReadPreference.parse` already, even where nothing is known yet.
        return ReadPreference("nearest", (), 1)
    return ReadPreference.parse(fields | {"maxStalenessSeconds": staleness})


def described(description: dict[str, Any]) -> Topology:
    servers = {server["address"]: server_of(server) for server in description["servers"]}
    topology = Topology(None if description["type"] == "Unknown" else "rs", servers)
    assert topology.type == description["type"]
    return topology


def server_of(fields: dict[str, Any]) -> Server:
    return Server(
        fields["address"],
        ServerType(fields["type"]),
        tags=fields.get("tags", {}),
        round_trip_seconds=fields.get("avg_rtt_ms", 0) / 1_000,
        wire_versions=(0, fields.get("maxWireVersion", WIRE_VERSIONS[1])),
        last_write_ms=int(fields.get("lastWrite", {}).get("lastWriteDate", 0)),
        last_update_ms=int(fields.get("lastUpdateTime", 0)),
    )


def addresses(servers: Any) -> set[str]:  # noqa: ANN401 - any iterable of servers
    return {server.address for server in servers}


def named(servers: list[dict[str, Any]] | None) -> set[str]:
    return {server["address"] for server in servers or ()}


@pytest.mark.parametrize("path", scenarios("server_selection/in_window", WINDOW_SKIPPED))
def test_in_window(path: Path) -> None:
    scenario = load(path)
    topology = described(scenario["topology_description"])
    busy = {state["address"]: state["operation_count"] for state in scenario["mocked_topology_state"]}
    servers = in_latency_window(suitable_servers(topology, ReadPreference("nearest")))
    iterations = scenario["iterations"]
    chosen = Counter(least_busy_of_two(servers, busy.__getitem__).address for _ in range(iterations))
    outcome = scenario["outcome"]
    for address, frequency in outcome["expected_frequencies"].items():
        tolerance = outcome["tolerance"] if frequency not in (0, 1) else 0
        assert chosen[address] / iterations == pytest.approx(frequency, abs=tolerance)


@pytest.mark.parametrize("path", scenarios("server_selection/rtt", {}))
def test_round_trips(path: Path) -> None:
    scenario = load(path)
    before = scenario["avg_rtt_ms"]
    after = smoothed_round_trip(None if before == "NULL" else before, scenario["new_rtt_ms"])
    assert after == pytest.approx(scenario["new_avg_rtt"])
