"""Errors before anything runs: one sentence, a non-zero exit status, and nothing left behind."""

import argparse
import json
import signal
import socket
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Final

import pytest

from shardwright.deploy import cli
from shardwright.deploy.cli import EXIT_OUTPUT_CLOSED, main
from shardwright.deploy.cluster_state import FORMAT, ClusterState
from shardwright.deploy.layout import Layout
from shardwright.deploy.topology import Size, Topology
from shardwright.deploy.up import MEMBERS_MAX, ROUTERS_MAX, SHARDS_MAX, WORKERS_MAX
from shardwright.router.cursors import open_cursor
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
    ["join", "shard0", "--member", "a"],
    ["join", "shard0", "--member", "a:b"],
    ["join", "shard0", "--member", "::1:1"],
    ["join", "shard0", "--member", "a:99999"],
    ["init-set", "shard0", "--with", "a,b:1"],
    ["init-set", "shard0", "--router", "mongodb://a:1"],
]


def error_of(*arguments: str) -> str:
    """The single line printed by a failing command."""
    with redirect_stdout(StringIO()) as output, redirect_stderr(StringIO()) as errors:
        status = main(list(arguments))
    return error_in(status, output.getvalue(), errors.getvalue())


@pytest.mark.parametrize(("reads", "repeated"), [(0, 1), (1, 100_000)])
def test_a_closed_output_is_a_normal_end(reads: int, repeated: int) -> None:
    """Close the output early or while it is written, as `shardwright top | head -1` does."""
    code = f"""
from shardwright.deploy import cli
cli._COMMANDS = {{"ps": lambda options: [print("a line") for _ in range({repeated})] and 0}}
raise SystemExit(cli.main(["ps"]))
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        for _ in range(reads):
            assert process.stdout.readline() == b"a line\n"
        process.stdout.close()
        errors = process.stderr.read()
    assert (process.returncode, errors) == (EXIT_OUTPUT_CLOSED, b"")


def test_a_program_in_place_of_the_command_ends_with_its_output() -> None:
    code = "from shardwright.deploy.cli import Program; Program(['yes']).replace_this_process()"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"y\n"
        process.stdout.close()
        errors = process.stderr.read()
    assert (process.returncode, errors) == (-signal.SIGPIPE, b"")


def test_other_broken_pipes_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: argparse.Namespace) -> int:
        raise BrokenPipeError

    monkeypatch.setattr(cli, "_COMMANDS", {"ps": fail})
    with pytest.raises(BrokenPipeError):
        main(["ps"])


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
    assert WORKERS_MAX == open_cursor.WORKERS_MAX


@pytest.mark.parametrize("arguments", MALFORMED)
def test_malformed_command_lines_are_explained(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "usage:" in capsys.readouterr().err


ROUTERS: Final = "mongodb://127.0.0.1:1/?tls=true&serverSelectionTimeoutMS=1"
WITH_URI: Final = (
    ["doctor", "--uri"],
    ["finish-upgrade", "--uri"],
    ["explain", "db.a.find()", "--uri"],
    ["lint", "operations", "--uri"],
    ["sync", "mongodb://127.0.0.1:1"],
    ["sync", "verify", "mongodb://127.0.0.1:1"],
)


@pytest.mark.parametrize("command", WITH_URI, ids=lambda words: words[0])
@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("garbage", "begin with 'mongodb://' or 'mongodb+srv://'"),
        ("", "begin with 'mongodb://' or 'mongodb+srv://'"),
        ("mongodb://", "Must provide at least one hostname or IP"),
        ("mongodb://a:99999", "Port must be an integer between 0 and 65535"),
        ("mongodb://a:b", "Port contains non-digit characters"),
        ("mongodb://[::1", "an IPv6 address literal must be enclosed in"),
        (f"{ROUTERS}&tlsCAFile=absent.pem", "absent.pem"),
        (f"{ROUTERS}&tlsCAFile=.", "Is a directory"),
        (f"{ROUTERS}&tlsCAFile=junk.pem", "tlsCAFile=junk.pem"),
        (f"{ROUTERS}&tlsCertificateKeyFile=absent.pem", "absent.pem"),
        (f"{ROUTERS}&tlsCertificateKeyFile=junk.pem", "tlsCertificateKeyFile=junk.pem"),
    ],
)
def test_a_connection_string_that_cannot_be_used_is_explained_at_once(
    command: list[str], uri: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("junk.pem").write_text("junk")
    Path("operations").write_text("db.a.find()")
    started = time.monotonic()
    assert message in error_of(*command, uri)
    assert time.monotonic() - started < 5


def test_files_for_tls_that_a_cluster_lacks_are_named(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    topology = Topology.plan(Size(1), router_port=lambda _: 1, free_ports=lambda _: 2)
    layout.save(ClusterState(topology, "mongod", 1, 1, tmp_path / "sockets", has_tls=True))
    for command in (["check"], ["balancer", "status"], ["map", "a.b"], ["explain", "db.a.find()"], ["finish-upgrade"]):
        assert f"cannot read {layout.tls.ca_file}: No such file" in error_of(*command, "--dir", str(tmp_path))


MEMBER: Final = """\
net: {port: 1, tls: {mode: requireTLS, CAFile: %s/ca.pem, certificateKeyFile: %s/host.pem}}
shardwright: {noauth: true, advertise: a.example.net, mongod: {socket: /run/x.sock, address: "127.0.0.1:1"}}
"""


@pytest.mark.parametrize("command", [["init-set", "config"], ["join", "config", "--member", "127.0.0.1:1"]])
@pytest.mark.parametrize(
    ("ca_file", "host_file", "message"),
    [
        (None, None, "cannot read {}/ca.pem: No such file or directory"),
        ("junk", "junk", "tlsCAFile={}/ca.pem"),
        ("", None, "cannot read {}/host.pem: No such file or directory"),
    ],
)
def test_files_for_tls_of_a_member_are_named(
    command: list[str], ca_file: str | None, host_file: str | None, message: str, tmp_path: Path
) -> None:
    (tmp_path / "configd-config.yaml").write_text(MEMBER % (tmp_path, tmp_path))
    for name, text in (("ca.pem", ca_file), ("host.pem", host_file)):
        if text is not None:
            (tmp_path / name).write_text(text)
    completed = shardwright(*command, "--config-dir", str(tmp_path))
    last = completed.stderr.splitlines()[-1]
    assert completed.returncode == 1
    assert last.startswith("shardwright: the address 127.0.0.1:1 cannot be used: "), completed.stderr
    assert message.format(tmp_path) in last


def test_a_file_that_is_not_as_it_should_be_is_named(tmp_path: Path) -> None:
    """For example a directory that a command enters before it has begun."""
    (tmp_path / "configd-config.yaml").mkdir()
    words = ("init-set", "config", "--config-dir", str(tmp_path))
    assert error_of(*words) == f"cannot read {tmp_path}/configd-config.yaml: Is a directory"


def test_state_file_that_cannot_be_parsed_in_depth(tmp_path: Path) -> None:
    (tmp_path / "cluster.json").write_text("[" * 100_000)
    assert "cannot read" in error_of("status", "--dir", str(tmp_path))
