"""Errors that prevent a daemon from starting: one line on standard error, and exit status 1."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardwright.daemon.run import open_listeners
from tests.daemon.test_signals import running

SECONDS_MAX = 60.0

TOY = ("tests.daemon.toy_daemon",)
ROUTER = ("shardwright.router.main", "--configdb", "config/127.0.0.1:1", "--workers", "2")


@pytest.fixture
def taken() -> Iterator[int]:
    """A port on which another process listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def free() -> int:
    """A port that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def error_of(*arguments: str) -> str:
    """The single line that a daemon prints when it fails to start."""
    completed = subprocess.run(
        [sys.executable, "-m", *arguments], capture_output=True, text=True, timeout=SECONDS_MAX, check=False
    )
    assert completed.returncode == 1, completed.stderr
    assert completed.stderr.count("\n") == 1, completed.stderr
    return completed.stderr.strip().partition(": ")[2]


@pytest.mark.parametrize("daemon", [TOY, ROUTER])
def test_port_in_use(daemon: tuple[str, ...], taken: int) -> None:
    assert error_of(*daemon, "--port", str(taken)) == f"cannot listen on 127.0.0.1:{taken}: Address already in use"


@pytest.mark.parametrize("daemon", [TOY, ROUTER])
def test_metrics_port_in_use(daemon: tuple[str, ...], taken: int, free: int) -> None:
    error = error_of(*daemon, "--port", str(free), "--metrics-port", str(taken))
    assert error == f"cannot listen on 127.0.0.1:{taken}: Address already in use"


@pytest.mark.parametrize("daemon", [TOY, ROUTER])
def test_log_that_cannot_be_written(daemon: tuple[str, ...], tmp_path: Path, free: int) -> None:
    error = error_of(*daemon, "--port", str(free), "--log-file", str(tmp_path))
    assert error == f"{tmp_path}: Is a directory"


def test_address_of_another_machine(free: int) -> None:
    error = error_of(*TOY, "--port", str(free), "--noauth", "--bind-ip", "[2001:db8::1]")
    assert error == f"cannot listen on [2001:db8::1]:{free}: Cannot assign requested address"


def test_impossible_host_name(free: int) -> None:
    assert error_of(*TOY, "--port", str(free), "--noauth", "--bind-ip", "a..b").startswith(
        f"cannot listen on a..b:{free}: "
    )


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6")
def test_brackets_are_accepted(tmp_path: Path) -> None:
    with running(tmp_path, "--bind-ip", "[::1]", "--metrics-port", "0") as daemon:
        (address,) = daemon.lines("Listening")[0]["addresses"]
        assert address.startswith("('::1', ")


@pytest.mark.parametrize("own", [(), ("--metrics-bind-ip", "127.0.0.2")])
def test_metrics_are_served_on_addresses_of_their_own(tmp_path: Path, free: int, own: tuple[str, ...]) -> None:
    """On loopback, unless another one is asked for by name; not where clients are served."""
    with running(tmp_path, "--noauth", "--bind-ip", "0.0.0.0", "--metrics-port", str(free), *own):
        answering = {f"127.0.0.{number}" for number in (1, 2, 3) if is_open(f"127.0.0.{number}", free)}
    assert answering == {own[1] if own else "127.0.0.1"}


def is_open(host: str, port: int) -> bool:
    """Whether a process listens there."""
    try:
        socket.create_connection((host, port), 10).close()
    except ConnectionRefusedError:
        return False
    return True


def test_metrics_ports_of_workers_beyond_the_last_one(free: int) -> None:
    error = error_of(*ROUTER, "--port", str(free), "--metrics-port", "65535")
    assert error == "--metrics-port 65535 leaves no ports for the metrics of all workers"


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6")
def test_all_addresses_of_both_versions(free: int) -> None:
    listeners = open_listeners(("0.0.0.0", "::"), free)
    for listener in listeners:
        listener.close()
