"""The signals that every daemon handles, as mongod does."""

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from shardwright.daemon.logs import DaemonLogs, LogFile, configure_logs
from shardwright.daemon.signal_mask import LOG_SIGNALS
from shardwright.daemon.signals import obey_log_signals
from shardwright.deploy.processes import spawn
from tests.integration.waiting import eventually

END_SECONDS_MAX = 60.0


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


@pytest.fixture(autouse=True)
def _hang_up_is_not_ignored() -> Iterator[None]:
    """Start the daemons as from a shell, even if these tests themselves were started by ``nohup``."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@contextmanager
def running(directory: Path, *options: str, prefix: tuple[str, ...] = ()) -> Iterator[Running]:
    """A running daemon, which is stopped after the block."""
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
def test_signal_shuts_down_in_order(tmp_path: Path, number: signal.Signals) -> None:
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


def test_sigusr1_reopens_a_moved_log(tmp_path: Path) -> None:
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
        eventually(lambda: "Could not rotate the log" in moved.read_text(), what="the failure is logged")
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


def test_burst_of_signals_while_nobody_reads_the_log() -> None:
    # As under a service manager whose journal is busy: the daemon waits in a write to standard error.
    command = [sys.executable, "-m", "tests.daemon.toy_daemon"]
    reading, writing = os.pipe()
    with subprocess.Popen(command, stderr=writing) as process, open(reading, "rb") as log:
        try:
            while b"Listening" not in log.readline():
                pass
            _fill(process, writing)
            for _ in range(300):
                process.send_signal(signal.SIGUSR2)
                process.send_signal(signal.SIGUSR1)
                time.sleep(0.001)  # otherwise they are merged into one
            process.send_signal(signal.SIGTERM)
            os.close(writing)
            too_late = threading.Timer(END_SECONDS_MAX, process.kill)
            too_late.start()
            errors = log.read()
            too_late.cancel()
            assert process.wait(END_SECONDS_MAX) == 0
            assert b"Stopped" in errors
            assert b"Traceback" not in errors
        finally:
            process.kill()


def test_signal_during_a_rotation_waits_until_it_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rotations: list[str] = []

    def rotate(file: LogFile, suffix: str) -> None:
        rotations.append("begin")
        if len(rotations) == 1:
            signal.raise_signal(signal.SIGUSR1)
        rotations.append("end")

    monkeypatch.setattr(LogFile, "rotate", rotate)
    before = [(number, signal.getsignal(number)) for number in LOG_SIGNALS]
    configure_logs(file=tmp_path / "log")
    try:
        obey_log_signals(DaemonLogs().rotate)
        DaemonLogs().rotate()  # as the command does
        assert rotations == ["begin", "end", "begin", "end"]
    finally:
        configure_logs()
        for number, handler in before:
            signal.signal(number, handler)


def _fill(process: subprocess.Popen[bytes], pipe: int) -> None:
    """Make the daemon write to its log until it waits for a reader."""

    def is_full() -> bool:
        process.send_signal(signal.SIGUSR2)
        return not select.select([], [pipe], [], 0)[1]

    eventually(is_full, what="the pipe is full")


def test_supervisor_blocks_signals_that_would_kill_a_starting_daemon(tmp_path: Path) -> None:
    sleeper = spawn(["/bin/sleep", "60"], tmp_path / "out", masked_signals=LOG_SIGNALS)
    try:
        for number in LOG_SIGNALS:
            sleeper.send(number)
        assert not sleeper.wait_ended(0.2)
    finally:
        sleeper.send(signal.SIGKILL)
        sleeper.wait_ended(END_SECONDS_MAX)


STARTING = [
    ("shardwright.router.main", "--configdb", "config/127.0.0.1:1"),
    ("shardwright.shardd.main", "--mongod-socket", "/nowhere/mongod.sock", "--mongod-address", "127.0.0.1:1"),
    ("shardwright.configd.main", "--mongod-socket", "/nowhere/mongod.sock", "--mongod-address", "127.0.0.1:1"),
]


@pytest.mark.parametrize("daemon", STARTING, ids=lambda daemon: daemon[0])
def test_signals_during_imports_are_handled_afterwards(tmp_path: Path, daemon: tuple[str, ...]) -> None:
    log = tmp_path / "log"
    process = subprocess.Popen([sys.executable, "-m", *daemon, "--port", "0", "--log-file", str(log)])
    try:
        eventually(lambda: _blocks(process.pid, signal.SIGHUP), what="signals are held back")
        for number in (signal.SIGUSR2, signal.SIGUSR1, signal.SIGHUP):
            process.send_signal(number)
        assert process.wait(END_SECONDS_MAX) == 0
        text = "".join(path.read_text() for path in tmp_path.iterdir())
        assert len(list(tmp_path.iterdir())) == 2  # the log was rotated
        assert "Stack traces complete" in text
        assert '"Stopped"' in text
    finally:
        process.kill()
        process.wait()


def _blocks(pid: int, number: signal.Signals) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    (mask,) = [line.split()[1] for line in status.splitlines() if line.startswith("SigBlk:")]
    return bool(int(mask, 16) >> (number - 1) & 1)
