"""Pid files of this directory, of another one, and damaged ones."""

import json
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardwright.deploy.durable_files import write_json
from shardwright.deploy.errors import DeployError
from shardwright.deploy.marks import directory_identity, mark, marked_processes
from shardwright.deploy.pid_files import PidFile, load_pid_file, save_pid_file
from shardwright.deploy.processes import ProcessIdentity, command_line, exit_description, spawn
from tests.integration.waiting import eventually

SLEEPER = "import signal; signal.pause()"
IDENTITY = ProcessIdentity(1, "boot:1")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    made = tmp_path / "cluster"
    made.mkdir()
    return made


@pytest.fixture
def sleeper(directory: Path) -> Iterator[ProcessIdentity]:
    """A process marked as ``router.0`` of the directory, with its log on its command line."""
    marks = mark(directory_identity(directory), "router.0")
    identity = spawn([sys.executable, "-c", SLEEPER, str(directory / "log")], directory / "log", marks)
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
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {SLEEPER!r}])"
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


def test_process_of_an_earlier_boot_is_not_running(directory: Path) -> None:
    # The number of a device may change when the machine reboots, so that the directory looks like another one.
    save_pid_file(directory / "pid", IDENTITY, directory, "0:0")
    assert load(directory) == PidFile(identity=IDENTITY)
