"""The options of sidecars."""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from shardwright.configd.service import run as run_configd
from shardwright.daemon.configuration.configuration import configuration
from shardwright.daemon.configuration.option import Program
from shardwright.daemon.configuration.table import SIDECAR
from shardwright.shardd.service import run as run_shardd

PROGRAM = Program("toy", "A daemon for tests.", SIDECAR)


def parsed(socket: str, address: str = "a:1") -> argparse.Namespace:
    return configuration(PROGRAM, ["--mongod-socket", socket, "--mongod-address", address], {}).values


def test_a_relative_socket_path_is_relative_to_the_working_directory() -> None:
    assert parsed("mongod.sock").mongod_socket == str(Path.cwd() / "mongod.sock")
    assert parsed("/run/../tmp/mongod.sock").mongod_socket == "/tmp/mongod.sock"


def test_a_member_is_known_by_host_and_port_or_by_its_socket() -> None:
    assert parsed("mongod.sock").mongod_address == "a:1"
    assert parsed("/s/m.sock", "./m.sock").mongod_address == "./m.sock"


@pytest.mark.parametrize("path", ["", "/" + 107 * "a"])
def test_an_impossible_socket_path_is_refused(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parsed(path)
    assert "at most 107 bytes" in capsys.readouterr().err


AUDIT = ("--audit-destination", "file", "--audit-path", "/nowhere/audit.json")
MONGOD = ("--mongod-socket", "mongod.sock", "--mongod-address", "127.0.0.1:1")


@pytest.mark.parametrize("run", [run_shardd, run_configd])
@pytest.mark.parametrize(
    ("options", "error"),
    [
        (AUDIT, "--audit-destination needs access control"),
        (AUDIT[2:], "--audit-path and --audit-filter need --audit-destination file"),
        ((*AUDIT, "--key-file", "key"), "/nowhere/audit.json: No such file or directory"),
    ],
)
def test_an_audit_log_that_cannot_be_written_prevents_the_start(
    run: Callable[[Sequence[str]], int], options: Sequence[str], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        run((*MONGOD, *options))
    assert caught.value.code in (1, 2)
    assert error in capsys.readouterr().err
