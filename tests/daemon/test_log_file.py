"""The log file and its rotation, by the daemon and by other programs."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardwright.daemon.logs import LogFile, LogRotation


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "daemon.log"


@pytest.fixture
def log(path: Path) -> Iterator[LogFile]:
    opened = LogFile(path)
    yield opened
    opened.close()


@pytest.fixture
def reopening(path: Path) -> Iterator[LogFile]:
    opened = LogFile(path, LogRotation.REOPEN)
    yield opened
    opened.close()


def texts(directory: Path) -> dict[str, str]:
    """The contents of each file in a directory."""
    return {each.name: each.read_text() for each in directory.iterdir()}


def test_rename_gives_the_old_file_the_suffix(log: LogFile, path: Path) -> None:
    log.write("old\n")
    log.rotate("then")
    log.write("new\n")
    assert texts(path.parent) == {"daemon.log": "new\n", "daemon.log.then": "old\n"}


def test_second_rotation_within_a_second_replaces_nothing(log: LogFile, path: Path) -> None:
    log.write("old\n")
    log.rotate("then")
    log.write("kept\n")
    with pytest.raises(FileExistsError, match=r"daemon\.log\.then exists already"):
        log.rotate("then")
    log.write("goes on\n")
    assert texts(path.parent) == {"daemon.log": "kept\ngoes on\n", "daemon.log.then": "old\n"}


def test_moved_file_is_not_renamed_again(log: LogFile, path: Path) -> None:
    log.write("old\n")
    path.rename(path.with_name("moved"))
    log.rotate("then")
    log.write("new\n")
    assert texts(path.parent) == {"daemon.log": "new\n", "moved": "old\n"}


def test_reopen_renames_nothing(reopening: LogFile, path: Path) -> None:
    reopening.write("old\n")
    reopening.rotate("then")
    reopening.write("more\n")
    path.rename(path.with_name("moved"))
    reopening.rotate("later")
    reopening.write("new\n")
    assert texts(path.parent) == {"daemon.log": "new\n", "moved": "old\nmore\n"}


def test_truncated_file_is_written_from_its_beginning(log: LogFile, path: Path) -> None:
    """As with ``copytruncate``: without appending there would be a hole as long as the old log."""
    log.write("old\n")
    os.truncate(path, 0)
    log.write("new\n")
    assert path.read_bytes() == b"new\n"


def test_processes_that_share_a_file_rotate_it_once(log: LogFile, path: Path) -> None:
    sibling = LogFile(path)
    try:
        log.write("old\n")
        sibling.rotate("then")
        log.rotate("later")
        sibling.write("one\n")
        log.write("two\n")
    finally:
        sibling.close()
    assert texts(path.parent) == {"daemon.log": "one\ntwo\n", "daemon.log.then": "old\n"}


def test_file_that_cannot_be_opened_leaves_the_old_one_in_use(log: LogFile, path: Path) -> None:
    path.rename(path.with_name("moved"))
    path.mkdir()
    with pytest.raises(IsADirectoryError):
        log.rotate("then")
    log.write("goes on\n")
    assert path.with_name("moved").read_text() == "goes on\n"


def test_standard_streams_follow_the_file(path: Path) -> None:
    """Otherwise the space of a finished file could not be freed by removing it."""
    code = (
        "import os, sys; from pathlib import Path; from shardwright.daemon.logs import LogFile\n"
        "log = LogFile(Path(sys.argv[1])); log.rotate('then'); os.write(2, b'trouble\\n')"
    )
    with path.open("ab") as stream:
        subprocess.run([sys.executable, "-c", code, path], stdout=stream, stderr=stream, check=True)
    assert texts(path.parent) == {"daemon.log": "trouble\n", "daemon.log.then": ""}


def test_characters_invalid_in_utf8_are_escaped(log: LogFile, path: Path) -> None:
    log.write("\ud800\n")
    assert path.read_text() == "\\ud800\n"
