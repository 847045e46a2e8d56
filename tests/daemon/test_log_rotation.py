"""The rotation of a daemon's own log and of its audit log."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from shardwright.daemon.logs import DaemonLogs, LogFile, configure_logs
from shardwright.wire.errors import CommandError


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """The folder of both logs."""
    configure_logs(file=tmp_path / "server.log")
    yield tmp_path
    configure_logs()


@pytest.fixture
def audit(folder: Path) -> Iterator[LogFile]:
    opened = LogFile(folder / "audit.json")
    opened.write("old\n")
    yield opened
    opened.close()


def rotated(folder: Path) -> list[str]:
    """Return the names of the logs with a finished file."""
    return sorted(each.name.partition(".20")[0] for each in folder.glob("*.20??-??-??T??-??-??"))


@pytest.mark.parametrize(
    ("kind", "expected"),
    [(None, ["audit.json", "server.log"]), ("audit", ["audit.json"]), ("server", ["server.log"])],
)
def test_all_logs_or_one_are_rotated(folder: Path, audit: LogFile, kind: str | None, expected: list[str]) -> None:
    DaemonLogs(audit).rotate_for_client(kind)
    audit.write("new\n")
    assert rotated(folder) == expected
    assert (folder / "audit.json").read_text() == ("new\n" if "audit.json" in expected else "old\nnew\n")


@pytest.mark.parametrize("kind", ["audit", "", "other"])
def test_a_log_that_there_is_not(folder: Path, kind: str) -> None:
    with pytest.raises(CommandError) as caught:
        DaemonLogs().rotate_for_client(kind)
    assert (caught.value.code, rotated(folder)) == (4, [])


def test_one_that_cannot_be_rotated_does_not_keep_the_other(folder: Path, audit: LogFile) -> None:
    (folder / "audit.json").rename(folder / "moved")
    (folder / "audit.json").mkdir()
    with pytest.raises(CommandError) as caught:
        DaemonLogs(audit).rotate_for_client()
    assert (caught.value.code, rotated(folder)) == (37, ["server.log"])
    assert "Could not rotate the audit log" in (folder / "server.log").read_text()


def test_both_are_opened_again_when_another_process_has_rotated_them(folder: Path, audit: LogFile) -> None:
    for name in ("audit.json", "server.log"):
        (folder / name).rename(folder / f"{name}.before")
    DaemonLogs(audit).reopen()
    audit.write("new\n")
    assert (folder / "audit.json").read_text() == "new\n"
    assert "Log file opened" in (folder / "server.log").read_text()
