"""Processes, and their pid files: of this directory, of another one, and damaged ones.

Small files are written as a whole or not at all.
"""

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO

import pytest

from shardwright.deploy.durable_files import write_json, write_private, write_text
from shardwright.deploy.errors import DeployError
from shardwright.deploy.processes import (
    PidFile,
    ProcessIdentity,
    command_line,
    directory_identity,
    exit_description,
    load_pid_file,
    mark,
    marked_processes,
    save_pid_file,
    spawn,
    wait_any_ended,
)
from tests.integration.waiting import eventually

SLEEPER = "import signal; print('ready', flush=True); signal.pause()"

Start = Callable[[str], ProcessIdentity]

SILENT_SLEEPER = "import signal; signal.pause()"
IDENTITY = ProcessIdentity(1, "boot:1")


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


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    made = tmp_path / "cluster"
    made.mkdir()
    return made


@pytest.fixture
def sleeper(directory: Path) -> Iterator[ProcessIdentity]:
    """A process marked as ``router.0`` of the directory, with its log on its command line."""
    marks = mark(directory_identity(directory), "router.0")
    identity = spawn([sys.executable, "-c", SILENT_SLEEPER, str(directory / "log")], directory / "log", marks)
    # A process that has just been spawned has neither a command line nor an environment for some microseconds.
    eventually(lambda: "-c" in command_line(identity.pid), what="the process has its command line")
    yield identity
    identity.send(signal.SIGKILL)
    assert identity.wait_ended(10)
    exit_description(identity)


def load(directory: Path) -> PidFile:
    return load_pid_file(directory / "pid", directory / "log", directory_identity(directory))


def save(directory: Path, identity: ProcessIdentity = IDENTITY) -> None:
    save_pid_file(directory / "pid", identity, directory, directory_identity(directory))


def test_saved_identity_is_loaded(directory: Path) -> None:
    assert load(directory) == PidFile()
    save(directory)
    assert load(directory) == PidFile(identity=IDENTITY)


def test_copy_names_the_original(directory: Path, sleeper: ProcessIdentity) -> None:
    save(directory, sleeper)
    copy = Path(shutil.copytree(directory, directory.with_name("copy")))
    assert load(copy) == PidFile(original=str(directory))


def test_directory_that_was_renamed_keeps_its_processes(directory: Path) -> None:
    save(directory)
    assert load(directory.rename(directory.with_name("renamed"))) == PidFile(identity=IDENTITY)


@pytest.mark.parametrize("content", ["", "{", "[]", '"x"', "5", "null", '{"pid": 5}', '{"pid": "x", "started": ""}'])
def test_damage_is_reported_and_not_raised(directory: Path, content: str) -> None:
    (directory / "pid").write_text(content)
    found = load(directory)
    assert found.damage
    assert (found.identity, found.original) == (None, None)


def test_pid_file_without_a_directory_is_checked_by_the_command_line(directory: Path, sleeper: ProcessIdentity) -> None:
    document = {"pid": sleeper.pid, "started": sleeper.started}
    (directory / "pid").write_text(json.dumps(document))
    assert load(directory) == PidFile(identity=sleeper)
    copy = Path(shutil.copytree(directory, directory.with_name("copy")))
    assert load(copy).identity is None


def test_process_is_found_by_its_mark(directory: Path, sleeper: ProcessIdentity, tmp_path: Path) -> None:
    assert marked_processes(directory_identity(directory)) == {"router.0": sleeper}
    assert marked_processes(directory_identity(tmp_path)) == {}


def test_a_child_process_is_not_mistaken_for_its_parent(directory: Path) -> None:
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {SILENT_SLEEPER!r}])"
    identity = spawn([sys.executable, "-c", code], directory / "log", mark(directory_identity(directory), "router.0"))
    children = Path(f"/proc/{identity.pid}/task/{identity.pid}/children")
    try:
        eventually(children.read_text, what="the process has started another one")
        assert marked_processes(directory_identity(directory)) == {"router.0": identity}
    finally:
        for child in children.read_text().split():
            found = ProcessIdentity.of(int(child))
            assert found is None or found.send(signal.SIGKILL)
        identity.send(signal.SIGKILL)
        assert identity.wait_ended(10)
        exit_description(identity)


def test_failed_write_leaves_the_old_file_and_nothing_else(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(directory)

    def fail(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shardwright.deploy.durable_files.os.fsync", fail)
    with pytest.raises(DeployError, match=r"cannot write .*/pid: No space left on device; fix this and run"):
        write_json(directory / "pid", {})
    assert [path.name for path in directory.iterdir()] == ["pid"]
    assert load(directory) == PidFile(identity=IDENTITY)


def test_a_private_file_is_private_before_it_has_contents(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, int]] = []
    fdopen = os.fdopen

    def watch(descriptor: int, mode: str, *, encoding: str) -> IO[str]:
        seen.append((Path(f"/proc/self/fd/{descriptor}").readlink().name, os.fstat(descriptor).st_mode & 0o777))
        return fdopen(descriptor, mode, encoding=encoding)

    monkeypatch.setattr("shardwright.deploy.durable_files.os.fdopen", watch)
    mask = os.umask(0)
    try:
        write_private(directory / "key", "secret")
        write_private(directory / "key", "another")
        write_text(directory / "units", "ä")
    finally:
        os.umask(mask)
    assert [mode for _, mode in seen] == [0o600, 0o600, 0o644]
    assert len({name for name, _ in seen}) == 3, "each writer has a file of its own"
    assert {path.name: path.read_text(encoding="utf-8") for path in directory.iterdir()} == {
        "key": "another",
        "units": "ä",
    }
    assert (directory / "key").stat().st_mode & 0o777 == 0o600


def test_process_of_an_earlier_boot_is_not_running(directory: Path) -> None:
    # The number of a device may change when the machine reboots, so that the directory looks like another one.
    save_pid_file(directory / "pid", IDENTITY, directory, "0:0")
    assert load(directory) == PidFile(identity=IDENTITY)
