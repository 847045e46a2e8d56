"""Errors before anything runs: one sentence, a non-zero exit status, and nothing left behind."""

import json
import socket
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from shardwright.deploy.cli import main
from shardwright.deploy.cluster_state import FORMAT
from shardwright.deploy.up_options import MEMBERS_MAX, ROUTERS_MAX, SHARDS_MAX, WORKERS_MAX
from shardwright.router.cursors import ids
from tests.local_cluster import shardwright

MALFORMED = [
    [],
    ["up", "--port", "70000"],
    ["up", "--timeout", "nan"],
    ["up", "--timeout", "-1"],
    ["up", "--cache-gb", "0"],
    ["up", "--workers", "0"],
    ["up", "--workers", "-1"],
    ["up", "--orphan-cleanup-delay", "-5"],
    ["kill", "router.0", "--signal", "NOPE"],
]


def error_of(*arguments: str) -> str:
    """The single line printed by a failing command."""
    with redirect_stdout(StringIO()) as output, redirect_stderr(StringIO()) as errors:
        status = main(list(arguments))
    return error_in(status, output.getvalue(), errors.getvalue())


def error_in(status: int, output: str, errors: str) -> str:
    """The single line of error output of a failed command."""
    assert status == 1, errors
    assert output == ""
    line, end, rest = errors.rpartition("\n")[0].rpartition("\n")
    assert (line, end) == ("", ""), errors
    return rest.removeprefix("shardwright: ")


def test_port_in_use(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        completed = shardwright("up", "--dir", str(tmp_path / "new" / "cluster"), "--port", str(port))
        error = error_in(completed.returncode, completed.stdout, completed.stderr)
        assert error == f"port {port} on 127.0.0.1 is in use"
    assert list(tmp_path.iterdir()) == []


def test_missing_mongod(tmp_path: Path) -> None:
    directory = tmp_path / "cluster"
    error = error_of("up", "--dir", str(directory), "--mongod", "/nowhere/mongod")
    assert error == "/nowhere/mongod is not an executable mongod"
    assert not directory.exists()


def test_directory_of_another_version(tmp_path: Path) -> None:
    (tmp_path / "cluster.json").write_text(json.dumps({"format": FORMAT + 1}))
    for command in (["up"], ["status"], ["down"], ["kill", "router.0"], ["restart", "router.0"]):
        assert "holds a cluster of another version" in error_of(*command, "--dir", str(tmp_path))


def test_directory_with_other_files(tmp_path: Path) -> None:
    (tmp_path / "precious").touch()
    assert "is not empty and holds no cluster" in error_of("up", "--dir", str(tmp_path), "--port", "0")
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]


@pytest.mark.parametrize("command", [["status"], ["down"], ["kill", "router.0"], ["restart", "router.0"]])
def test_no_cluster(tmp_path: Path, command: list[str]) -> None:
    directory = tmp_path / "none"
    start = f"`shardwright up --dir {directory}`"
    assert error_of(*command, "--dir", str(directory)) == f"there is no cluster in {directory}; start one with {start}"


def test_impossible_numbers(tmp_path: Path) -> None:
    assert error_of("up", "--dir", str(tmp_path), "--shards", "0") == "--shards must be at least 1, not 0"


@pytest.mark.parametrize(
    ("option", "maximum"),
    [
        ("--shards", SHARDS_MAX),
        ("--members", MEMBERS_MAX),
        ("--config-members", MEMBERS_MAX),
        ("--routers", ROUTERS_MAX),
        ("--workers", WORKERS_MAX),
    ],
)
def test_numbers_beyond_the_maximum(
    tmp_path: Path, option: str, maximum: int, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path / "cluster"
    assert main(["up", "--dir", str(directory), option, "100000"]) == 1
    assert capsys.readouterr().err == f"shardwright: {option} must be at most {maximum}, not 100000\n"
    assert not directory.exists()


def test_launcher_and_router_agree_on_the_number_of_workers() -> None:
    assert WORKERS_MAX == ids.WORKERS_MAX


@pytest.mark.parametrize("arguments", MALFORMED)
def test_malformed_command_lines_are_explained(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "usage:" in capsys.readouterr().err


def test_state_file_that_cannot_be_parsed_in_depth(tmp_path: Path) -> None:
    (tmp_path / "cluster.json").write_text("[" * 100_000)
    assert "cannot read" in error_of("status", "--dir", str(tmp_path))
