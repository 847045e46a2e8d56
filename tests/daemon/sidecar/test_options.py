"""The options of sidecars."""

import argparse
from pathlib import Path

import pytest

from shardwright.daemon.sidecar.options import add_sidecar_options


def parsed(socket: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_sidecar_options(parser)
    return parser.parse_args(["--mongod-socket", socket, "--mongod-address", "a:1"])


def test_a_relative_socket_path_is_relative_to_the_working_directory() -> None:
    assert parsed("mongod.sock").mongod_socket == str(Path.cwd() / "mongod.sock")
    assert parsed("/run/../tmp/mongod.sock").mongod_socket == "/tmp/mongod.sock"


@pytest.mark.parametrize("path", ["", "/" + 107 * "a"])
def test_an_impossible_socket_path_is_refused(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parsed(path)
    assert "at most 107 bytes" in capsys.readouterr().err
