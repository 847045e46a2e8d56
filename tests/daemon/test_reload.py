"""A running daemon with a file: SIGHUP, its pid file, and its notifications to a service manager."""

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardwright.daemon.process_environment import ServiceManager
from tests.daemon.test_signals import running
from tests.integration.waiting import eventually

SECONDS_MAX = 60.0


@pytest.fixture
def notifications(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """The socket of a service manager, whose address is in the environment."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        path = tmp_path / "notify"
        receiver.bind(str(path))
        receiver.settimeout(SECONDS_MAX)
        monkeypatch.setenv("NOTIFY_SOCKET", str(path))
        yield receiver


def received_until(receiver: socket.socket, wanted: str) -> list[str]:
    """The messages up to one that begins with ``wanted``, without their values of times."""
    found: list[str] = []
    while not found or not found[-1].startswith(wanted):
        found.append(receiver.recv(4096).decode().split("\n")[0])
    return found


def test_sighup_applies_what_may_change_and_names_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "toy.yaml"
    path.write_text("net: {maxIncomingConnections: 5}\n")
    with running(tmp_path, "--config", str(path)) as daemon:
        path.write_text("net: {maxIncomingConnections: 6, bindIp: localhost}\nsystemLog: {verbosity: debug}\n")
        daemon.process.send_signal(signal.SIGHUP)
        line = daemon.wait_line("Read the configuration again")
        assert line["changed"] == ["log_level", "max_connections"]
        assert line["after_restart"] == ["bind-ip"]
        path.write_text("net: {maxIncomingConnection: 6}\n")
        daemon.process.send_signal(signal.SIGHUP)
        line = daemon.wait_line("Could not read the configuration again; nothing was changed")
        assert line["error"] == (
            f"{path}:1: unknown key net.maxIncomingConnection; did you mean net.maxIncomingConnections?"
        )
        assert daemon.process.poll() is None


def test_the_first_line_of_the_log_introduces_the_process(tmp_path: Path) -> None:
    with running(tmp_path, "--slow-ms", "5") as daemon:
        (line,) = daemon.lines("Starting")
        assert line["pid"] == daemon.process.pid
        assert line["host"] == socket.gethostname()
        assert line["version"]
        assert line["options"] == {"log-file": str(tmp_path / "toy.log"), "slow-ms": 5}
        assert daemon.log.read_text().index("Starting") < daemon.log.read_text().index("Listening")


def test_the_pid_file_lives_as_long_as_the_daemon(tmp_path: Path) -> None:
    path = tmp_path / "toy.pid"
    with running(tmp_path, "--pid-file", str(path)) as daemon:
        assert path.read_text() == f"{daemon.process.pid}\n"
        daemon.process.terminate()
        assert daemon.process.wait(SECONDS_MAX) == 0
    assert not path.exists()


def test_a_service_manager_is_notified(
    tmp_path: Path, notifications: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "200000")
    path = tmp_path / "toy.yaml"
    path.write_text("")
    with running(tmp_path, "--config", str(path)) as daemon:
        assert received_until(notifications, "READY") == ["READY=1"]
        assert received_until(notifications, "STATUS")[-1] == "STATUS=Serving"
        assert received_until(notifications, "WATCHDOG")[-1] == "WATCHDOG=1"
        daemon.process.send_signal(signal.SIGHUP)
        assert received_until(notifications, "RELOADING")[-1] == "RELOADING=1"
        assert received_until(notifications, "READY")[-1] == "READY=1"
        daemon.process.terminate()
        assert received_until(notifications, "STOPPING")[-1] == "STOPPING=1"


def test_a_child_reports_only_that_it_is_ready(notifications: socket.socket) -> None:
    manager = ServiceManager({**os.environ, "WATCHDOG_USEC": "1000000"}, is_main=False)
    assert manager.watchdog_seconds is None
    manager.status("Serving")
    manager.stopping()
    manager.reloading()
    manager.ready()
    assert notifications.recv(100) == b"READY=1"


def test_another_process_is_watched(notifications: socket.socket) -> None:
    assert notifications
    watched = {**os.environ, "WATCHDOG_USEC": "3000000"}
    assert ServiceManager({**watched, "WATCHDOG_PID": str(os.getpid())}).watchdog_seconds == 3.0
    assert ServiceManager({**watched, "WATCHDOG_PID": "1"}).watchdog_seconds is None


def test_a_manager_that_has_gone_does_not_end_the_daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "nobody"))
    with running(tmp_path) as daemon:
        eventually(lambda: daemon.lines("Could not notify the service manager"), what="the failure is logged")
        assert daemon.process.poll() is None
