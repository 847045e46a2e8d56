"""A router with workers that takes its options from a file: its status, and changes by SIGHUP in all workers."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any

import pytest
import yaml
from pymongo import MongoClient

from shardwright.deploy.ports import PortReservation
from tests.integration.waiting import eventually
from tests.local_cluster import Client, RunningCluster

END_SECONDS_MAX = 60.0
WORKERS = 2


@dataclass(frozen=True)
class ConfiguredRouter:
    """A running router and its files."""

    cluster: RunningCluster
    port: int
    process: subprocess.Popen[bytes]
    file: Path
    log: Path
    pid_file: Path

    def client(self) -> Client:
        """A new client; close it."""
        options = self.cluster.credentials(is_router=True).options
        return MongoClient("127.0.0.1", self.port, directConnection=True, **options)

    def workers(self) -> list[int]:
        """The pids of the workers."""
        pid = self.process.pid
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def lines(self, message: str) -> list[dict[str, Any]]:
        """The lines of the log with this message."""
        lines = [json.loads(line) for line in self.log.read_text().splitlines()] if self.log.exists() else []
        return [line for line in lines if line["msg"] == message]


def options(cluster: RunningCluster, port: int, directory: Path) -> dict[str, Any]:
    """The contents of the file."""
    return {
        "net": {"port": port},
        "setParameter": {"cursorTimeoutMillis": 5000},
        "sharding": {"configDB": f"config/{cluster.address('config.0.configd')}"},
        "systemLog": {"destination": "file", "path": str(directory / "router.log"), "logAppend": True},
        "processManagement": {"fork": False, "pidFilePath": str(directory / "router.pid")},
        "shardwright": {"workers": WORKERS},
    }


@contextmanager
def running(cluster: RunningCluster, directory: Path, port: int) -> Iterator[ConfiguredRouter]:
    """A router with a file, which is ended after the block."""
    file = directory / "router.yaml"
    file.write_text(yaml.safe_dump(options(cluster, port, directory)))
    command = [sys.executable, "-m", "shardwright.router.main", "--config", str(file), *cluster.daemon_options]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        yield ConfiguredRouter(cluster, port, process, file, directory / "router.log", directory / "router.pid")
    finally:
        process.terminate()
        process.wait(END_SECONDS_MAX)


@pytest.fixture
def notifications(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleQueue[str]]:
    """The first lines of the messages to a service manager, whose address is in the environment.

    A socket holds ten messages, and further ones are lost, so a thread receives them at once, as a manager does.
    """
    messages: SimpleQueue[str] = SimpleQueue()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(tmp_path / "notify"))

        def receive() -> None:
            while message := receiver.recv(4096).decode():
                messages.put(message.partition("\n")[0])

        thread = Thread(target=receive)
        thread.start()
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", "500000")
        try:
            yield messages
        finally:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.sendto(b"", str(tmp_path / "notify"))
            thread.join()


def received(messages: SimpleQueue[str], wanted: set[str]) -> None:
    """Wait until all of these messages have arrived."""
    missing = set(wanted)
    while missing:
        missing.discard(messages.get(timeout=END_SECONDS_MAX))


def test_a_router_with_a_file_and_workers(
    cluster: RunningCluster, tmp_path: Path, notifications: SimpleQueue[str]
) -> None:
    with PortReservation() as ports:
        port = ports.hold_free()
    with running(cluster, tmp_path, port) as router:
        received(notifications, {"READY=1", "WATCHDOG=1"})
        eventually(lambda: len(router.lines("Listening")) == WORKERS, what="all workers listen")
        assert router.pid_file.read_text() == f"{router.process.pid}\n"
        introductions = router.lines("Starting")
        assert {line["pid"] for line in introductions} >= {router.process.pid}
        assert len(introductions) == 1 + WORKERS
        with router.client() as client:
            shown = client.admin.command("getCmdLineOpts")["parsed"]
            assert shown["config"] == str(router.file)
            assert shown["net"]["port"] == port
            assert shown["setParameter"] == {"cursorTimeoutMillis": "5000"}
            assert shown["shardwright"]["workers"] == WORKERS

        changed = options(cluster, port, tmp_path)
        changed["setParameter"] = {"cursorTimeoutMillis": 6000, "enableTestCommands": True}
        changed["operationProfiling"] = {"slowOpThresholdMs": 7}
        changed["net"]["bindIp"] = "127.0.0.1,127.0.0.2"
        router.file.write_text(yaml.safe_dump(changed))
        router.process.send_signal(signal.SIGHUP)
        received(notifications, {"RELOADING=1"})
        received(notifications, {"READY=1"})
        lines = eventually(
            lambda: found if len(found := router.lines("Read the configuration again")) == WORKERS else None,
            what="all workers have read the file again",
        )
        for line in lines:
            assert line["changed"] == ["parameters", "slow_ms"]
            assert line["after_restart"] == ["bind-ip", "enableTestCommands"]
        with router.client() as client:
            assert client.admin.command({"getParameter": 1, "cursorTimeoutMillis": 1})["cursorTimeoutMillis"] == 6000
            assert client.admin.command({"profile": -1})["slowms"] == 7
        router.file.write_text("nett: {}")
        os.kill(router.workers()[0], signal.SIGKILL)
        eventually(lambda: len(router.lines("Starting")) == 2 + WORKERS, what="the worker is started again")
        router.process.send_signal(signal.SIGHUP)
        (line,) = eventually(
            lambda: router.lines("Could not read the configuration again; nothing was changed"),
            what="the mistake is logged",
        )
        assert line["error"].splitlines() == [
            f"{router.file}:1: unknown key nett; did you mean net?",
            "the following arguments are required: --configdb",
        ]
        with router.client() as client:
            assert client.admin.command({"getParameter": 1, "cursorTimeoutMillis": 1})["cursorTimeoutMillis"] == 6000
        router.process.terminate()
        received(notifications, {"STOPPING=1"})
        assert router.process.wait(END_SECONDS_MAX) == 0
        assert not router.pid_file.exists()
