"""The signals that every daemon obeys, as mongod does."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.integration.waiting import eventually

END_SECONDS_MAX = 20.0


@dataclass
class Running:
    """A daemon and its log."""

    process: subprocess.Popen[bytes]
    log: Path

    def lines(self, message: str) -> list[dict[str, Any]]:
        """The lines of the log with this message."""
        text = self.log.read_text() if self.log.exists() else ""
        lines = [json.loads(line) for line in text.splitlines()]
        return [line for line in lines if line["msg"] == message]

    def wait_line(self, message: str) -> dict[str, Any]:
        """The first line with this message, once there is one."""
        return eventually(lambda: self.lines(message), what=f"the log says {message!r}")[0]


@contextmanager
def running(directory: Path, *options: str, prefix: tuple[str, ...] = ()) -> Iterator[Running]:
    """A daemon that serves; it is gone after the block."""
    log = directory / "toy.log"
    command = [*prefix, sys.executable, "-m", "tests.daemon.toy_daemon", "--log-file", str(log), *options]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        started = Running(process, log)
        started.wait_line("Listening")
        yield started
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signal_that_ends_in_order(tmp_path: Path, number: signal.Signals) -> None:
    with running(tmp_path) as daemon:
        daemon.process.send_signal(number)
        assert daemon.process.wait(END_SECONDS_MAX) == 0
        assert daemon.lines("Stopped")


def test_daemon_started_by_nohup_survives_its_terminal(tmp_path: Path) -> None:
    with running(tmp_path, prefix=("nohup",)) as daemon:
        daemon.process.send_signal(signal.SIGHUP)
        daemon.process.send_signal(signal.SIGUSR1)
        daemon.wait_line("Log file opened")
        assert daemon.process.poll() is None
        assert not daemon.lines("Shutting down")


def test_sigusr1_renames_the_log(tmp_path: Path) -> None:
    with running(tmp_path) as daemon:
        daemon.process.send_signal(signal.SIGUSR1)
        assert daemon.wait_line("Log file opened")["pid"] == daemon.process.pid
        (finished,) = tmp_path.glob("toy.log.*")
        assert "Listening" in finished.read_text()
        assert not daemon.lines("Listening")


def test_sigusr1_opens_a_log_that_was_moved(tmp_path: Path) -> None:
    with running(tmp_path, "--log-rotate", "reopen") as daemon:
        daemon.log.rename(tmp_path / "moved")
        daemon.process.send_signal(signal.SIGUSR1)
        daemon.wait_line("Log file opened")
        assert sorted(path.name for path in tmp_path.iterdir()) == ["moved", "toy.log"]


def test_log_that_cannot_be_rotated_does_not_end_the_daemon(tmp_path: Path) -> None:
    with running(tmp_path, "--log-rotate", "reopen") as daemon:
        moved = daemon.log.rename(tmp_path / "moved")
        daemon.log.mkdir()
        daemon.process.send_signal(signal.SIGUSR1)
        eventually(lambda: "The log could not be rotated" in moved.read_text(), what="the failure is logged")
        assert daemon.process.poll() is None


def test_sigusr2_writes_stack_traces(tmp_path: Path) -> None:
    with running(tmp_path) as daemon:
        daemon.process.send_signal(signal.SIGUSR2)
        assert daemon.wait_line("Stack traces complete")["tasks"] >= 2
        (thread,) = [line for line in daemon.lines("Stack trace of a thread") if line["thread"] == "MainThread"]
        assert any("run_daemon" in frame for frame in thread["stack"])
        stacks = [line["stack"] for line in daemon.lines("Stack trace of tasks")]
        assert any("sleep_forever" in stack[0] for stack in stacks)
        assert daemon.process.poll() is None
