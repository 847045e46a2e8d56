"""Each check of the doctor finds its fault in the facts, and nothing in a healthy cluster."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from shardwright.deploy.doctor import living_routers
from shardwright.deploy.doctor_checks import CHECKS, Severity, examine
from shardwright.deploy.doctor_facts import Certificate, Facts, Host, Kind, LocalProcess, Server

NOW = datetime(2026, 6, 1, tzinfo=UTC)
FINE = Certificate(("a.example.net", "*.example.net"), NOW + timedelta(days=90))
OPTIONS: dict[str, Any] = {"setParameter": {"enableTestCommands": "1"}, "sharding": {"clusterRole": "shardsvr"}}
HOSTS = [f"{host}.example.net:27018" for host in "abc"]
MONGODS = [f"{host}.example.net:28018" for host in "abc"]


def shard_daemon(index: int) -> Server:
    """A healthy daemon of the shard."""
    hello = {"hosts": HOSTS, "extensions": [], "isWritablePrimary": index == 0, "secondary": index > 0}
    return Server(
        address=HOSTS[index],
        kind=Kind.SHARD_DAEMON,
        replica_set="shard0",
        hello=hello,
        version="6.0.5",
        own_version="0.1.0",
        options=OPTIONS,
        sidecars=dict(zip(MONGODS, HOSTS, strict=True)),
        waits_for_journal=True,
        disk_used=0.5,
        clock_offset_seconds=0.1 * index,
        certificate=FINE,
    )


def test_routers_are_alive_by_the_clock_of_the_config_servers() -> None:
    pings = {"here:1": NOW - timedelta(seconds=20), "gone:1": NOW - timedelta(hours=1), "odd:1": 5, "older:1": None}
    pings["ahead:1"] = NOW + timedelta(hours=1)
    entries = [{"_id": name, "ping": ping, "now": NOW} for name, ping in pings.items()]
    assert living_routers([*entries, {"_id": "without:1", "now": NOW}]) == ["here:1"]


CONFIG = Server(
    address="a.example.net:27019",
    kind=Kind.CONFIG_DAEMON,
    replica_set="config",
    hello={"hosts": ["a.example.net:27019"], "isWritablePrimary": True},
    version="6.0.5",
    own_version="0.1.0",
    options={"sharding": {"clusterRole": "configsvr"}},
    sidecars={"a.example.net:28019": "a.example.net:27019"},
)
ROUTER = Server(
    address="a.example.net:27017", kind=Kind.ROUTER, hello={"msg": "isdbgrid"}, version="6.0.5", own_version="0.1.0"
)
HOST = Host(
    (LocalProcess("router.0", 64_000), LocalProcess("shard0.0.mongod", 1_000_000, ("/data",))),
    "madvise",
    disks_used={"/data": 0.2},
)
HEALTHY = Facts(
    (ROUTER, CONFIG, shard_daemon(0), shard_daemon(1), shard_daemon(2)), NOW, HOST, ("a.example.net:27017",)
)
"""Facts that are not faults, too: a wildcard, a clock that is a tenth of a second off, a certificate with 90 days."""


def with_server(index: int, **changes: Any) -> Facts:  # noqa: ANN401 - facts of all types
    """The healthy cluster with changes of one server: 0 is the router, 1 the config daemon, 2 to 4 the shard's."""
    servers = list(HEALTHY.servers)
    servers[index] = replace(servers[index], **changes)
    return replace(HEALTHY, servers=tuple(servers))


def with_hello(index: int, **changes: Any) -> Facts:  # noqa: ANN401 - fields of all types
    """The healthy cluster with changes of one hello."""
    return with_server(index, hello={**HEALTHY.servers[index].hello, **changes})


def with_host(**changes: Any) -> Facts:  # noqa: ANN401 - facts of all types
    """The healthy cluster on another machine."""
    return replace(HEALTHY, host=replace(HOST, **changes))


def everywhere_local(facts: Facts) -> Facts:
    """The healthy cluster on one machine, by addresses of loopback."""
    local = {server.address: f"127.0.0.1:{30_000 + index}" for index, server in enumerate(facts.servers)}
    moved = (
        replace(
            server,
            address=local[server.address],
            hello={**server.hello, "hosts": [local[host] for host in server.hello.get("hosts", ())]},
            sidecars={mongod: local[daemon] for mongod, daemon in server.sidecars.items()},
            certificate=None,
        )
        for server in facts.servers
    )
    return replace(facts, servers=tuple(moved), seeds=("localhost:1",))


@pytest.mark.parametrize("facts", [HEALTHY, everywhere_local(HEALTHY), Facts((), NOW)])
def test_a_healthy_cluster_has_no_findings(facts: Facts) -> None:
    assert examine(facts) == []


ERROR, WARNING = Severity.ERROR, Severity.WARNING
SET_UP = (
    "the replica set shard0 has been initiated with the addresses of daemons; reconfigure it (replSetReconfig) with "
    "the addresses of its mongods, here a.example.net:28018 in place of a.example.net:27018"
)

PLANTED: list[tuple[str, Severity, str, Callable[[], Facts]]] = [
    ("closed-port", ERROR, HOSTS[1], lambda: with_server(3, refusal="connection refused", hello={}, options=None)),
    ("closed-port", ERROR, ROUTER.address, lambda: with_server(0, refusal="no answer within 3 s", hello={})),
    ("closed-port-between-members", ERROR, HOSTS[0], lambda: with_server(2, unreachable_members=(HOSTS[2],))),
    ("daemon-without-mongod", ERROR, HOSTS[2], lambda: with_server(4, failure="connection closed", hello={})),
    ("router-without-answer", ERROR, ROUTER.address, lambda: with_server(0, failure="timed out", hello={})),
    (
        "mongod-in-place-of-daemon",
        ERROR,
        MONGODS[0],
        lambda: with_server(2, address=MONGODS[0]),
    ),
    (
        "mongod-in-place-of-daemon",
        ERROR,
        CONFIG.address,
        lambda: with_server(1, options={"net": {"port": 27019}}, sidecars={}),
    ),
    (
        "mongod-in-place-of-daemon",
        ERROR,
        HOSTS[1],
        lambda: with_server(3, hello={"hosts": HOSTS, "secondary": True}),
    ),
    ("set-up", ERROR, HOSTS[0], lambda: with_hello(2, setUpError=SET_UP)),
    ("member-without-daemon", ERROR, "shard0", lambda: with_hello(2, hosts=[*HOSTS, "d.example.net:28018"])),
    ("no-primary", ERROR, "shard0", lambda: with_hello(2, isWritablePrimary=False, secondary=True)),
    ("loopback-advertised", ERROR, "127.0.0.1:27017", lambda: with_server(0, address="127.0.0.1:27017")),
    (
        "loopback-advertised",
        ERROR,
        "[::1]:27017",
        lambda: with_server(0, address="[::1]:27017"),
    ),
    ("clock", ERROR, HOSTS[2], lambda: with_server(4, clock_offset_seconds=5.0)),
    ("clock", ERROR, HOSTS[2], lambda: with_server(4, clock_offset_seconds=-1.5, clock_error_seconds=0.1)),
    (
        "certificate-expires",
        WARNING,
        HOSTS[0],
        lambda: with_server(2, certificate=replace(FINE, expires=NOW + timedelta(days=29))),
    ),
    (
        "certificate-expires",
        ERROR,
        HOSTS[0],
        lambda: with_server(2, certificate=replace(FINE, expires=NOW - timedelta(days=1))),
    ),
    ("certificate-host", ERROR, HOSTS[0], lambda: with_server(2, certificate=replace(FINE, names=("b.example.net",)))),
    ("certificate-host", ERROR, HOSTS[0], lambda: with_server(2, certificate=replace(FINE, names=("*.net",)))),
    ("open-files", WARNING, "router.0", lambda: with_host(processes=(LocalProcess("router.0", 1024),))),
    (
        "open-files",
        WARNING,
        HOSTS[0],
        lambda: replace(
            with_server(2, startup_warnings=("Soft rlimits for open file descriptors too low {}",)), host=None
        ),
    ),
    ("versions", WARNING, "mongods", lambda: with_server(2, version="7.0.1")),
    ("versions", WARNING, "daemons", lambda: with_server(2, own_version="0.2.0")),
    (
        "test-commands",
        ERROR,
        HOSTS[0],
        lambda: with_server(2, options={**OPTIONS, "setParameter": {"enableTestCommands": "0"}}),
    ),
    ("test-commands", ERROR, HOSTS[0], lambda: with_server(2, options={"sharding": {"clusterRole": "shardsvr"}})),
    (
        "journal",
        ERROR,
        HOSTS[0],
        lambda: with_server(2, options={**OPTIONS, "storage": {"journal": {"enabled": False}}}),
    ),
    ("journal", WARNING, HOSTS[0], lambda: with_server(2, waits_for_journal=False)),
    ("disk-full", WARNING, HOSTS[0], lambda: with_server(2, disk_used=0.86)),
    ("disk-full", ERROR, "/data", lambda: with_host(disks_used={"/data": 0.99})),
    ("disk-read-only", ERROR, "/data", lambda: with_host(read_only=("/data",))),
    ("disk-read-only", ERROR, HOSTS[0], lambda: with_hello(2, readOnly=True)),
    ("huge-pages", WARNING, "this machine", lambda: with_host(huge_pages="always")),
    (
        "huge-pages",
        WARNING,
        HOSTS[0],
        lambda: with_server(
            2, startup_warnings=("/sys/kernel/mm/transparent_hugepage/enabled is 'always'. We suggest 'never' {}",)
        ),
    ),
    ("unknown-options", WARNING, HOSTS[0], lambda: with_server(2, options=None)),
]


@pytest.mark.parametrize(("check", "severity", "where", "plant"), PLANTED, ids=[each[0] for each in PLANTED])
def test_a_planted_fault_is_found(check: str, severity: Severity, where: str, plant: Callable[[], Facts]) -> None:
    found = [finding for finding in examine(plant()) if finding.check == check]
    assert [(finding.severity, finding.where) for finding in found] == [(severity, where)]
    assert found[0].what
    assert found[0].mend


def test_a_planted_fault_is_found_by_few_checks() -> None:
    """A list of consequences would hide the cause: other findings are allowed where there is really another fault."""
    both = {
        ("daemon-without-mongod", "no-primary"),
        ("mongod-in-place-of-daemon", "certificate-host"),
        ("versions", "versions"),
    }
    for check, _, where, plant in PLANTED:
        others = {finding.check for finding in examine(plant())} - {check}
        assert all((check, other) in both for other in others), (check, where, others)


def test_every_check_has_a_planted_fault() -> None:
    assert {check.name for check in CHECKS} == {each[0] for each in PLANTED}


def test_a_mongod_that_is_too_old_is_an_error() -> None:
    found = examine(with_server(2, version="5.0.9"))
    assert [(each.check, each.severity) for each in found] == [("versions", ERROR), ("versions", WARNING)]


def test_the_cause_of_a_wrong_set_up_is_divided_into_fault_and_cure() -> None:
    (found,) = examine(with_hello(2, setUpError=SET_UP))
    assert found.what == "the replica set shard0 has been initiated with the addresses of daemons"
    assert found.mend.startswith("reconfigure it (replSetReconfig)")


def test_a_member_that_is_down_is_not_a_closed_port_between_members() -> None:
    facts = with_server(4, failure="connection closed", hello={}, options=None)
    facts = replace(
        facts,
        servers=(*facts.servers[:2], replace(facts.servers[2], unreachable_members=(HOSTS[2],)), *facts.servers[3:]),
    )
    assert [finding.check for finding in examine(facts)] == ["daemon-without-mongod"]


def test_the_page_lists_every_check() -> None:
    page = (Path(__file__).parents[2] / "docs" / "doctor.md").read_text(encoding="utf-8")
    rows = [f"| `{check.name}` | {check.title} |" for check in CHECKS]
    assert [row for row in rows if row not in page.splitlines()] == []
