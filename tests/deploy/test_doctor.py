"""`shardwright doctor` on a real cluster with access control: a healthy one, and faults that are planted one by one."""

import json
import resource
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

import pytest

from shardwright.deploy.cli import main
from shardwright.deploy.doctor import Credentials, findings_text, gather, of_connection_string
from shardwright.deploy.doctor_checks import CERTIFICATE_DAYS_MIN, OPEN_FILES_MIN, examine
from shardwright.deploy.doctor_facts import Facts, Kind, Server
from shardwright.deploy.errors import DeployError
from tests.certificates import Authority
from tests.integration.waiting import eventually
from tests.local_cluster import RunningCluster, running_cluster, shardwright

SECONDS_MAX = 60.0

OF_THIS_MACHINE = {"open-files", "huge-pages", "disk-full"}
"""Checks whose findings may be true of the machine that runs the tests."""


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    """A cluster of two shards, in which every test repairs the damage it has done."""
    with running_cluster(tmp_path_factory.mktemp("own"), "--auth") as running:
        yield running


def findings(own: RunningCluster, *words: str) -> list[dict[str, Any]]:
    """Run the command and return its findings, without the findings about this machine."""
    with redirect_stdout(StringIO()) as output:
        status = main(["doctor", "--json", "--dir", str(own.directory), *words])
    found: list[dict[str, Any]] = json.loads(output.getvalue())["findings"]
    assert status == (2 if found else 0)
    return [each for each in found if each["check"] not in OF_THIS_MACHINE]


def names(found: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(each["check"], each["where"]) for each in found]


@contextmanager
def killed(own: RunningCluster, name: str) -> Iterator[None]:
    """Without a process, which is started again after the block."""
    own.kill(name)
    try:
        yield
    finally:
        own.restart(name)


def test_a_healthy_cluster_has_no_findings(own: RunningCluster) -> None:
    assert findings(own) == []


def test_a_connection_string_and_the_key_are_enough(own: RunningCluster) -> None:
    key = str(own.key_file)
    assert findings(own, "--uri", own.client_uri(), "--key-file", key) == []
    ((check, where),) = names(findings(own, "--uri", own.client_uri()))
    assert check == "unknown-options"
    assert own.address("shard0.0.shardd") in where


def test_wrong_credentials_are_an_error(own: RunningCluster) -> None:
    uri = own.client_uri().replace("mongodb://root:", f"mongodb://{quote_plus('someone else')}:")
    completed = shardwright("doctor", "--uri", uri)
    assert completed.returncode == 1
    assert "refuses to describe the cluster: Authentication failed" in completed.stderr


def test_another_server_in_place_of_a_router_is_an_error(own: RunningCluster) -> None:
    other = own.address("config.0.configd")
    completed = shardwright("doctor", "--uri", own.client_uri().replace(own.address("router.0"), other))
    assert completed.returncode == 1
    assert f"{other} is not a router" in completed.stderr


def test_a_daemon_without_its_mongod(own: RunningCluster) -> None:
    with killed(own, "shard0.0.mongod"):
        assert names(findings(own)) == [("daemon-without-mongod", own.address("shard0.0.shardd"))]
    eventually(lambda: findings(own) == [], what="the shard is well again")


def test_config_servers_that_are_away(own: RunningCluster) -> None:
    with killed(own, "config.0.mongod"):
        assert ("daemon-without-mongod", own.address("config.0.configd")) in names(findings(own))
    eventually(lambda: findings(own) == [], what="the config servers are well again")


@pytest.mark.parametrize("name", ["shard1.0.shardd", "router.0"])
def test_a_closed_port(own: RunningCluster, name: str) -> None:
    with killed(own, name):
        assert names(findings(own)) == [("closed-port", own.address(name))]
    eventually(lambda: findings(own) == [], what="the process answers again")


def test_a_low_limit_on_open_files(own: RunningCluster) -> None:
    pid = own.pid("shard1.0.shardd")
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (2000, before[1]))
    try:
        completed = shardwright("doctor", "--dir", str(own.directory))
        assert completed.returncode == 2
        assert f"may open 2000 files, fewer than {OPEN_FILES_MIN}" in completed.stdout
        assert "WARNING open-files at shard1.0.shardd" in completed.stdout
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


def test_writes_that_do_not_wait_for_the_journal(own: RunningCluster) -> None:
    def reconfigure(waits: bool) -> None:
        with own.direct("shard0.0.shardd") as client:
            wanted = client.admin.command("replSetGetConfig")["config"]
            wanted["version"] += 1
            wanted["writeConcernMajorityJournalDefault"] = waits
            client.admin.command("replSetReconfig", wanted, force=True)

    reconfigure(False)
    try:
        assert names(findings(own)) == [("journal", own.address("shard0.0.shardd"))]
    finally:
        reconfigure(True)
    eventually(lambda: findings(own) == [], what="the set is as before")


def test_a_set_with_the_addresses_of_daemons(own: RunningCluster) -> None:
    daemon = own.address("shard1.0.shardd")

    def reconfigure(host: str | None = None) -> str:
        with own.direct("shard1.0.mongod") as client:
            wanted = client.admin.command("replSetGetConfig")["config"]
            before = str(wanted["members"][0]["host"])
            wanted["version"] += 1
            wanted["members"][0]["host"] = host or daemon
            client.admin.command("replSetReconfig", wanted, force=True)
        return before

    mongod = reconfigure()
    try:
        found = eventually(
            lambda: [each for each in findings(own) if each["check"] == "set-up"], what="the daemon notices"
        )
        assert names(found) == [("set-up", daemon)]
        assert found[0]["what"].endswith("has been initiated with the addresses of daemons")
    finally:
        reconfigure(mongod)
    eventually(lambda: findings(own) == [], what="the set is as before")


@contextmanager
def tls_listener(file: Path) -> Iterator[str]:
    """A server with a certificate that says nothing; its address."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)

    def serve(listener: socket.socket) -> None:
        while True:
            try:
                plain, _ = listener.accept()
            except OSError:
                return  # the listener was shut down
            plain.settimeout(SECONDS_MAX)
            with suppress(OSError), context.wrap_socket(plain, server_side=True):
                pass

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(SECONDS_MAX)


@pytest.mark.parametrize(
    ("days", "hosts", "expected"),
    [
        ((-1, CERTIFICATE_DAYS_MIN + 5), ("127.0.0.1",), []),
        ((-1, CERTIFICATE_DAYS_MIN - 5), ("127.0.0.1",), ["certificate-expires"]),
        ((-5, -1), ("127.0.0.1",), ["certificate-expires"]),
        ((-1, CERTIFICATE_DAYS_MIN + 5), ("db.example.net",), ["certificate-host"]),
    ],
)
def test_certificates_are_examined(
    tmp_path: Path, days: tuple[int, int], hosts: tuple[str, ...], expected: list[str]
) -> None:
    issued = Authority(tmp_path).issue("server.pem", days=days, hosts=hosts)
    with tls_listener(issued.path) as address:
        facts = gather([address], Credentials({"tls": True, "tlsAllowInvalidCertificates": True}))
    found = [finding.check for finding in examine(facts)]
    assert [name for name in found if name.startswith("certificate")] == expected


def test_connection_strings_are_understood(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("bmV3\n")
    uri = "mongodb://ro%40ot:p%2Fw@a.example.net,[::1]:5/?authSource=admin&tls=true&tlsCAFile=%2Fca.pem&replicaSet=x"
    seeds, credentials = of_connection_string(uri.replace("%2Fca.pem", quote_plus(str(key))), key)
    assert seeds == ["a.example.net:27017", "[::1]:5"]
    at_routers = {name.lower(): value for name, value in credentials.at_routers.items()}
    assert (at_routers["username"], at_routers["password"], at_routers["tls"]) == ("ro@ot", "p/w", True)
    assert credentials.at_members["password"] == "bmV3"
    assert "replicaset" not in at_routers
    with pytest.raises(DeployError, match="cannot read the key file"):
        of_connection_string("mongodb://a/", tmp_path / "none")
    with pytest.raises(DeployError, match="cannot be used"):
        of_connection_string("a:1", None)


def test_nothing_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--uri", "mongodb://127.0.0.1:1/"]) == 2
    assert "ERROR closed-port at 127.0.0.1:1" in capsys.readouterr().out


def test_findings_are_written_for_people() -> None:
    server = Server(address="a:1", kind=Kind.ROUTER, refusal="connection refused")
    text = findings_text(examine(Facts((server,), datetime.now(UTC))))
    assert text.splitlines()[0] == "ERROR closed-port at a:1"
    assert text.splitlines()[-1] == "1 found by 20 checks"
    assert findings_text([]) == "nothing found by 20 checks"
