"""A daemon with the key of a cluster in front of a mongod without access control, which accepts any client."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardwright.deploy.ports import PortReservation
from tests.integration.raw_client import raw_client
from tests.integration.waiting import eventually
from tests.shardd.lone_mongod import LoneMongod

REFUSED = "The mongod does not know the key of this cluster"


@pytest.fixture
def daemon(lone: LoneMongod, tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """The daemon's address and log."""
    key, log = tmp_path / "key", tmp_path / "log"
    key.write_text("a key of the cluster")
    key.chmod(0o600)
    with PortReservation() as ports:
        port, metrics_port = ports.hold_free(), ports.hold_free()
    command = [sys.executable, "-m", "shardwright.shardd.main", "--port", str(port), "--log-file", str(log)]
    command += ["--metrics-port", str(metrics_port), "--key-file", str(key)]
    command += ["--mongod-socket", lone.socket, "--mongod-address", lone.address]
    process = subprocess.Popen(command)
    try:
        yield f"127.0.0.1:{port}", log
    finally:
        process.kill()
        process.wait()


def test_no_client_gets_through(daemon: tuple[str, Path]) -> None:
    address, log = daemon
    eventually(lambda: log.exists() and "Listening" in log.read_text(), what="the daemon listens")
    for command in ({"hello": 1}, {"ping": 1}, {"listDatabases": 1}, {"insert": "c", "documents": [{}]}):
        with raw_client(address) as client:
            client.send_command(command)
            answer = client.receive()
            assert not answer or client.is_closed_by_server()
    eventually(lambda: REFUSED in log.read_text(), what="the log says why")
    told = [line for line in map(json.loads, log.read_text().splitlines()) if line["msg"] == REFUSED]
    assert len(told) == 1
