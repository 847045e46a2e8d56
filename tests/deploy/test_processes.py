import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from shardwright.deploy.processes import ProcessIdentity, exit_description, spawn, wait_any_ended

SLEEPER = "import signal; print('ready', flush=True); signal.pause()"

Start = Callable[[str], ProcessIdentity]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts Python code as a process, and ends it with the test."""
    started = []

    def start_code(code: str) -> ProcessIdentity:
        identity = spawn([sys.executable, "-c", code], tmp_path / "log")
        started.append(identity)
        return identity

    yield start_code
    for identity in started:
        identity.send(signal.SIGKILL)
        assert identity.wait_ended(10)
        exit_description(identity)


def test_running_process_is_known_by_pid_and_start(start: Start) -> None:
    identity = start(SLEEPER)
    assert identity.is_running()
    assert ProcessIdentity.of(identity.pid) == identity


def test_recycled_pid_is_never_signalled(start: Start) -> None:
    identity = start(SLEEPER)
    former = replace(identity, started="another boot:1")
    assert not former.is_running()
    assert not former.send(signal.SIGKILL)
    assert former.wait_ended(0)
    assert identity.is_running()


def test_process_gets_the_given_variables(start: Start, tmp_path: Path) -> None:
    identity = spawn(
        [sys.executable, "-c", "import os; print(os.environ['GIVEN'], 'PATH' in os.environ)"],
        tmp_path / "log",
        {"GIVEN": "value"},
    )
    assert identity.wait_ended(10)
    exit_description(identity)
    assert (tmp_path / "log").read_text() == "value True\n"


def test_zombie_is_not_running(start: Start) -> None:
    identity = start("raise SystemExit(3)")
    assert identity.wait_ended(10)
    assert not identity.is_running()
    assert exit_description(identity) == "ended with exit status 3"


def test_end_by_signal_is_described(start: Start) -> None:
    identity = start(SLEEPER)
    assert identity.send(signal.SIGKILL)
    assert identity.wait_ended(10)
    assert exit_description(identity) == "was ended by SIGKILL"
    assert exit_description(identity) == "ended"


def test_waiting_is_bounded(start: Start) -> None:
    assert not start(SLEEPER).wait_ended(0.01)


def test_any_end_wakes_the_watcher(start: Start) -> None:
    stays, ends = start(SLEEPER), start("pass")
    wait_any_ended([stays, ends], 60)
    assert not ends.is_running()
    wait_any_ended([stays, ends], 60)
    assert stays.is_running()


def test_output_goes_to_the_log(start: Start, tmp_path: Path) -> None:
    identity = start("import sys; print('out'); print('err', file=sys.stderr)")
    assert identity.wait_ended(10)
    assert sorted((tmp_path / "log").read_text().split()) == ["err", "out"]


def test_ignored_signals_are_not_inherited(tmp_path: Path, start: Start) -> None:
    previous = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        identity = start("import signal; signal.sigwait([signal.SIGUSR1])")
    finally:
        signal.signal(signal.SIGTERM, previous)
    assert identity.send(signal.SIGTERM)
    assert identity.wait_ended(10)


def test_a_pause_is_waited_for_on_a_busy_machine(start: Start) -> None:
    """The signal is sent before it takes effect, and until then the process can still answer."""
    identity = start("import threading\nfor _ in range(8): threading.Thread(target=lambda: any(iter(int, 1))).start()")
    for _ in range(20):
        assert identity.send(signal.SIGSTOP)
        assert identity.wait_paused(10)
        assert {thread.read_text().rpartition(")")[2].split()[0] for thread in threads(identity)} == {"T"}
        assert identity.send(signal.SIGCONT)
    identity.send(signal.SIGKILL)
    assert identity.wait_ended(10)
    assert identity.wait_paused(0), "it has ended"


def test_a_process_that_runs_is_not_paused(start: Start) -> None:
    assert not start(SLEEPER).wait_paused(0.01)


def threads(identity: ProcessIdentity) -> list[Path]:
    return [task / "stat" for task in Path(f"/proc/{identity.pid}/task").iterdir()]
