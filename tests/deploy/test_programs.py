"""The programs that `connect` and `logs` start, and the console that `up` starts alongside a cluster."""

import re
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import pytest
from pymongo.errors import OperationFailure

from shardwright.deploy.access import Access
from shardwright.deploy.cli import URI_VARIABLE, connection_string, console_beside, mongosh, tail
from shardwright.deploy.errors import DeployError
from shardwright.deploy.status import duration_text, process_table
from tests.local_cluster import RunningCluster, shardwright

PLAIN = {"uri": "mongodb://127.0.0.1:1,127.0.0.1:2/"}


def closed(directory: Path) -> dict[str, object]:
    """A description of a cluster with access control and TLS."""
    (directory / "password").write_text("p@ss/word")
    auth = {"user": "root", "database": "admin", "passwordFile": str(directory / "password")}
    return {**PLAIN, "auth": auth, "tls": {"caFile": "/t/ca.pem", "clientCertificateFile": "/t/client.pem"}}


def test_an_open_cluster_needs_its_address_only() -> None:
    assert connection_string(PLAIN) == PLAIN["uri"]


def test_a_closed_cluster_needs_a_password_and_certificates(tmp_path: Path) -> None:
    assert connection_string(closed(tmp_path)) == (
        "mongodb://root:p%40ss%2Fword@127.0.0.1:1,127.0.0.1:2/"
        "?authSource=admin&tls=true&tlsCAFile=%2Ft%2Fca.pem&tlsCertificateKeyFile=%2Ft%2Fclient.pem"
    )


def test_no_command_line_has_the_password(tmp_path: Path) -> None:
    program = mongosh(closed(tmp_path), ["--quiet"])
    assert "p%40ss" in program.environment[URI_VARIABLE]
    assert "p%40ss" not in " ".join(program.words)
    assert "--shell" in program.words
    assert "--shell" not in mongosh(PLAIN, ["--eval", "1"]).words


def test_a_password_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    document = closed(tmp_path)
    (tmp_path / "password").unlink()
    with pytest.raises(DeployError, match="cannot read the password"):
        connection_string(document)


def test_logs_are_printed_by_tail(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    with pytest.raises(DeployError, match="was never started"):
        tail(log, 5, follows=False)
    log.touch()
    assert tail(log, 5, follows=False).words == ["tail", "-n", "5", str(log)]
    assert tail(log, 5, follows=True).words == ["tail", "-n", "5", "-F", str(log)]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.5, "0s"), (61, "1m 1s"), (3600, "1h 0m"), (90_061, "1d 1h"), (7 * 86_400, "7d 0h")],
)
def test_durations_have_their_two_largest_units(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


def test_what_is_not_known_is_a_dash() -> None:
    stopped = {"name": "router.0", "role": "router", "pid": None, "state": "stopped", "version": None}
    head, row = process_table([{**stopped, "uptimeSeconds": None, "memoryBytes": None}]).splitlines()
    assert head.split() == ["NAME", "ROLE", "STATE", "VERSION", "UPTIME", "MEMORY", "PID"]
    assert row.split() == ["router.0", "router", "stopped", "-", "-", "-", "-"]


@pytest.mark.parametrize("exists", [False, True])
def test_a_password_that_was_removed_is_not_invented(exists: bool, tmp_path: Path) -> None:
    """Another password than the user's would be refused."""

    def command(_name: str, _user: str, *, pwd: str, roles: list[str]) -> None:
        assert pwd == access.password_file.read_text()
        assert roles == ["root"]
        if exists:
            raise OperationFailure("exists", 51003)

    access = Access(tmp_path / "auth")
    access.create(has_key=True)
    access.create_first_user({"admin": SimpleNamespace(command=command)})  # type: ignore[arg-type]
    assert access.password_file.exists() is not exists


def test_a_console_runs_within_the_block(cluster: RunningCluster) -> None:
    with console_beside(cluster.directory, 0) as line:
        found = re.search(r"http://\S+", line or "")
        assert found is not None
        with urllib.request.urlopen(found[0], timeout=60) as answer:
            assert answer.status == 200
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(found[0], timeout=10)


def test_without_a_port_there_is_none(tmp_path: Path) -> None:
    with console_beside(tmp_path, None) as line:
        assert line is None


def test_a_console_that_does_not_start(tmp_path: Path) -> None:
    with pytest.raises(DeployError, match="did not start"), console_beside(tmp_path, 0):
        pass


def test_a_detached_cluster_has_none(tmp_path: Path) -> None:
    completed = shardwright("up", "--dir", str(tmp_path), "--detach", "--console-port", "0")
    assert completed.returncode == 1
    assert "needs the foreground" in completed.stderr
