"""Shard and config daemons with files of options: SIGHUP applies changes to them, and a mistake changes nothing."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.waiting import eventually
from tests.local_cluster import RunningCluster, running_cluster

READ_AGAIN = "Read the configuration again"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The file of each daemon."""
    directory = tmp_path_factory.mktemp("files")
    found = {name: directory / f"{name}.yaml" for name in ("shardd", "configd")}
    for path in found.values():
        path.write_text("operationProfiling: {slowOpThresholdMs: 50000}\n")
    return found


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory, files: dict[str, Path]) -> Iterator[RunningCluster]:
    """A cluster of one shard, whose daemons have files."""
    words = [word for name, path in files.items() for word in (f"--{name}-option", f"config={path}")]
    with running_cluster(tmp_path_factory.mktemp("own"), "--shards", "1", *words) as running:
        yield running


def lines(own: RunningCluster, name: str, message: str) -> list[dict[str, Any]]:
    return [line for line in map(json.loads, own.log(name).splitlines()) if line["msg"] == message]


def hang_up(own: RunningCluster, name: str) -> dict[str, Any]:
    """Send SIGHUP, and return the line that it leads to."""
    before = len(lines(own, name, READ_AGAIN))
    os.kill(own.pid(name), signal.SIGHUP)
    return eventually(lambda: lines(own, name, READ_AGAIN)[before:], what=f"{name} reads its file again")[0]


def test_a_shard_daemon_takes_over_parameters_and_the_threshold(own: RunningCluster, files: dict[str, Path]) -> None:
    name = "shard0.0.shardd"
    with own.direct(name) as client:
        assert client.admin.command({"getParameter": 1, "verifyMigrations": 1})["verifyMigrations"] is False
        client.admin.command("ping")
        assert lines(own, name, "Slow operation") == []
        files["shardd"].write_text(
            "operationProfiling: {slowOpThresholdMs: 0}\n"
            "setParameter: {verifyMigrations: true}\n"
            "net: {bindIp: localhost}\n"
        )
        line = hang_up(own, name)
        assert line["changed"] == ["parameters", "slow_ms"]
        assert line["after_restart"] == ["bind-ip"]
        assert client.admin.command({"getParameter": 1, "verifyMigrations": 1})["verifyMigrations"] is True
        client.admin.command("ping")
        eventually(lambda: lines(own, name, "Slow operation"), what="every operation is slow now")
        files["shardd"].write_text("operationProfiling: {slowOpThresholdMs: 50000}\n")
        line = hang_up(own, name)
        assert "verifyMigrations" in line["after_restart"]
        assert client.admin.command({"getParameter": 1, "verifyMigrations": 1})["verifyMigrations"] is True


def test_a_config_daemon_takes_over_the_threshold_and_survives_mistakes(
    own: RunningCluster, files: dict[str, Path]
) -> None:
    name = "config.0.configd"
    with own.direct(name) as client:
        files["configd"].write_text("operationProfiling: {slowOpThresholdMs: 0}\n")
        assert hang_up(own, name)["changed"] == ["slow_ms"]
        client.admin.command("ping")
        eventually(lambda: lines(own, name, "Slow operation"), what="every operation is slow now")
        files["configd"].write_text("setParameter: {verifyMigrations: true}\n")
        os.kill(own.pid(name), signal.SIGHUP)
        mistake = "Could not read the configuration again; nothing was changed"
        (line,) = eventually(lambda: lines(own, name, mistake), what="the mistake is logged")
        assert line["error"].endswith("setParameter.verifyMigrations: shardwright-configd has no server parameters")
        client.admin.command("ping")
