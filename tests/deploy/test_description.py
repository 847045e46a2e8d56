"""The description of a cluster: valid contents, and the places of mistakes."""

import json
from pathlib import Path

import pytest

from shardwright.daemon.configuration.file import ConfigurationError
from shardwright.deploy.description import SHAPE, Description, parse_description, schema

ROOT = Path(__file__).parents[2]
THREE_HOSTS = """\
hosts:
  a.example.net: 10.0.0.1
  b.example.net: 10.0.0.2
  c.example.net: 10.0.0.3
config:
  members: [a.example.net, b.example.net, c.example.net]
shards:
  shard0:
    members: [a.example.net, b.example.net, c.example.net]
    cacheGB: 0.5
  shard1:
    members: [a.example.net]
routers:
  members: [a.example.net, b.example.net]
"""


def parse(text: str) -> Description:
    return parse_description(text, "cluster.yaml")


def mistakes(text: str) -> tuple[str, ...]:
    with pytest.raises(ConfigurationError) as caught:
        parse(text)
    return caught.value.mistakes


def test_ports_count_up() -> None:
    described = parse(THREE_HOSTS)
    assert [(each.name, each.port, each.mongod_port) for each in described.sets] == [
        ("config", 27019, 28019),
        ("shard0", 27018, 28018),
        ("shard1", 27020, 28020),
    ]
    assert described.config_string == "config/a.example.net:27019,b.example.net:27019,c.example.net:27019"
    assert described.has_tls
    assert sorted(described.ports_of("c.example.net")) == [9300, 9301, 27018, 27019, 28018, 28019]


@pytest.mark.parametrize(
    ("before", "after", "mistake"),
    [
        ("cacheGB", "cachGB", "cluster.yaml:10: unknown key shards.shard0.cachGB; did you mean cacheGB?"),
        ("routers:", "router:", "cluster.yaml:13: unknown key router; did you mean routers?"),
        ("0.5", "much", "cluster.yaml:10: shards.shard0.cacheGB: 'much' is not a number from 0.25 to 10000"),
        ("10.0.0.3", "10.0.0.2", "cluster.yaml:4: hosts.c.example.net: another host has the address 10.0.0.2 too"),
        ("10.0.0.3", "10.0.0.3,::1", "cluster.yaml:4: hosts.c.example.net: '10.0.0.3,::1' is not a single address"),
        (
            "    members: [a.example.net]",
            "    members: [a.exampel.net]",
            "cluster.yaml:12: shards.shard1.members: no host is called a.exampel.net; did you mean a.example.net?",
        ),
        (
            "members: [a.example.net, b.example.net]",
            "members: [a.example.net, a.example.net]",
            "cluster.yaml:14: routers.members has a.example.net twice",
        ),
        ("members: [a.example.net]", "member: []", "cluster.yaml:12: shards.shard1 lacks members"),
        ("  shard1:", "  config:", "cluster.yaml:11: shards.config: config is the name of the config servers' set"),
        (
            "    cacheGB: 0.5",
            "    port: 27019",
            "cluster.yaml: on a.example.net, configd of config and shardd of shard0 have the same port 27019",
        ),
        (
            "routers:",
            "security: {tls: false, clusterAuthMode: x509}\nrouters:",
            "cluster.yaml:13: security.clusterAuthMode: x509 needs security.tls",
        ),
        (
            "routers:",
            "options: {shardd: {operationProfiling: {slowOpThreshold: 5}}}\nrouters:",
            "cluster.yaml:13: unknown key operationProfiling.slowOpThreshold; did you mean "
            "operationProfiling.slowOpThresholdMs?",
        ),
        (
            "routers:",
            "options: {router: {shardwright: {workers: 0}}}\nrouters:",
            "cluster.yaml:13: shardwright.workers: '0' is not a number from 1 to 64",
        ),
    ],
)
def test_a_mistake_has_its_line_and_the_nearest_key(before: str, after: str, mistake: str) -> None:
    assert mistake in mistakes(THREE_HOSTS.replace(before, after, 1))


def test_all_mistakes_are_reported_at_once() -> None:
    found = mistakes(THREE_HOSTS.replace("cacheGB", "cachGB").replace("10.0.0.1", "[]"))
    assert [mistake.partition(" ")[0] for mistake in found] == ["cluster.yaml:2:", "cluster.yaml:10:"]


def test_other_files_are_explained() -> None:
    assert mistakes("") == ("cluster.yaml: the file is empty",)
    assert mistakes("[a]")[0] == "cluster.yaml:1: the file has to be a section with keys"
    assert mistakes("a: [")[0].startswith("cluster.yaml:")


def test_the_schema_is_published() -> None:
    """`shardwright plan --schema > docs/schemas/cluster.json`."""
    assert json.loads((ROOT / "docs" / "schemas" / "cluster.json").read_text()) == schema()
    assert list(schema()["properties"]) == list(SHAPE.keys)
