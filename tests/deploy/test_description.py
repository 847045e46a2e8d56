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
        *(
            (
                "routers:",
                f"options: {{{role}: {{{option}: {value}}}}}\nrouters:",
                f"cluster.yaml:13: options.{role}.{option}: {key} of this file decide it for all processes",
            )
            for role, option, value, key in (
                ("mongod", "net.port", 28018, "`port` and `mongodPort`"),
                ("shardd", "net.port", 27020, "`port` and `mongodPort`"),
                ("mongod", "replication.replSetName", "other", "the names of the sets"),
                ("router", "sharding.configDB", "config/a:1", "`config`"),
                ("configd", "security.clusterAuthMode", "x509", "`security.clusterAuthMode`"),
            )
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
        ("  b.example.net:", "  ? [b.example.net]\n  :", "cluster.yaml:3: a key has to be a word"),
        ("  shard1:", "  shard0:", "cluster.yaml:11: shards.shard0 is given twice"),
        (
            "  shard1:",
            "  -x:",
            "cluster.yaml:11: shards.-x: '-x' is not a name of at most 64 letters, digits, - and _, not beginning "
            "with -",
        ),
        ("    cacheGB: 0.5", "    port: 0", "cluster.yaml:10: shards.shard0.port: '0' is not a port from 1 to 65535"),
        (
            "    cacheGB: 0.5",
            "    port: 65000",
            "cluster.yaml: on a.example.net, the port 66000 of mongod of shard0 is not from 1 to 65535: choose another",
        ),
        (
            "    cacheGB: 0.5",
            "    port: 5000",
            "cluster.yaml: on a.example.net, the port -12718 of metrics of shardd of shard0 is not from 1 to 65535: "
            "choose another",
        ),
        ("    cacheGB: 0.5", "    port: &x [1]", "cluster.yaml:10: shards.shard0.port has to be a single value"),
        (
            "  b.example.net:",
            "  A.example.net:",
            "cluster.yaml:3: hosts.A.example.net: another host has the same name in other letters",
        ),
        (
            "10.0.0.3",
            "0.0.0.0",
            "cluster.yaml:4: hosts.c.example.net: '0.0.0.0' is not an address at which other hosts reach this one",
        ),
        (
            "10.0.0.3",
            "'::'",
            "cluster.yaml:4: hosts.c.example.net: '::' is not an address at which other hosts reach this one",
        ),
        (
            "routers:",
            "options: {mongod: [a]}\nrouters:",
            "cluster.yaml:13: options.mongod has to be a section with keys",
        ),
        ("routers:", "options: {router: a}\nrouters:", "cluster.yaml:13: options.router has to be a section with keys"),
        *(
            ("routers:", f"options: {{mongod: {{{text}}}}}\nrouters:", f"cluster.yaml:13: {mistake}")
            for text, mistake in (
                ("net: ", "options.mongod.net has no value"),
                ("? [a]: 1", "a key has to be a word"),
                ("<<: {a: 1}", "a key has to be a word"),
                ("net..port: 1", "a key has to be a word"),
                ("net: {port: 1, port: 2}", "options.mongod.net.port is given twice"),
                ("net: {port: 1}, net: {ipv6: true}", "options.mongod.net is given twice"),
                ("net: {port: 1}, net.port: 2", "options.mongod.net.port is given twice"),
                ("net.port: 2, net: {port: 1}", "options.mongod.net.port is given twice"),
                ("net: 1, net.port: 2", "options.mongod.net.port is given twice"),
                ("net: &a {b: *a}", "options.mongod.net.b repeats a section by an alias: write it out"),
                (
                    "a: !!python/name:os.system x",
                    "could not determine a constructor for the tag 'tag:yaml.org,2002:python/name:os.system'",
                ),
                ("a: 2001-99-99", "options.mongod.a: month must be in 1..12"),
                ("a: !!int x", "options.mongod.a: invalid literal for int() with base 10: 'x'"),
            )
        ),
    ],
)
def test_a_mistake_has_its_line_and_the_nearest_key(before: str, after: str, mistake: str) -> None:
    assert mistake in mistakes(THREE_HOSTS.replace(before, after, 1))


@pytest.mark.parametrize(
    "name",
    [
        *("..", ".", "authority", "Cluster-Key", "steps.txt", "*", "*.example.net", "a/b", "-a", "a b", "a;b", "$(a)"),
        *("ä.net", "", "a..b", "a.", "10.0.0.300", "0.0.0.0", "a" * 64, f"{'a' * 40}.{'b' * 40}", '"a\\nb"', "~"),
    ],
)
def test_names_that_are_unsafe_as_folders_are_refused(name: str) -> None:
    quoted = name if name.startswith('"') else f"'{name}'"
    found = mistakes(THREE_HOSTS.replace("  b.example.net:", f"  {quoted}:"))
    assert found[0].startswith("cluster.yaml:3: hosts."), found


def test_addresses_of_ipv6_turn_it_on_in_mongods() -> None:
    described = parse(THREE_HOSTS.replace("10.0.0.3", "'[FD00::0:3]'"))
    assert described.addresses["c.example.net"] == "fd00::3"
    assert described.has_ipv6
    assert not parse(THREE_HOSTS).has_ipv6
    found = mistakes(THREE_HOSTS.replace("c.example.net: 10.0.0.3", "'fd00::3': 10.0.0.3"))
    assert "give the host a name, with the IPv6 address as its value" in found[0]


def test_a_low_port_needs_a_port_for_metrics() -> None:
    text = THREE_HOSTS.replace(
        "  members: [a.example.net, b.example.net]\n", "  members: [a.example.net]\n  port: 2717\n"
    )
    assert "the port -15084 of metrics of router worker 0" in mistakes(text)[0]
    described = parse(f"{text}options: {{router: {{shardwright.metrics.port: 9216}}}}\n")
    assert {2717, 9216} <= described.ports_of("a.example.net").keys()


def test_further_options_may_be_written_with_dots() -> None:
    text = "options: {mongod: {net.a: 9, net: {ipv6: true}, setParameter: {failpoint.x: 1}}, router: }\nrouters:"
    assert parse(THREE_HOSTS.replace("routers:", text)).options == {
        "mongod": {"net": {"a": 9, "ipv6": True}, "setParameter": {"failpoint.x": 1}},
        "router": {},
    }


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
