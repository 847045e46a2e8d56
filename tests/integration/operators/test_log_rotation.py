"""The log of a router, which several workers may share."""

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from pymongo.errors import OperationFailure

from tests.integration.routers import extra_router
from tests.integration.waiting import eventually
from tests.local_cluster import Client, RunningCluster, client_of

WORKERS = 2


def openers(log: Path) -> set[int]:
    """The processes that have continued in a new log."""
    lines = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    return {line["pid"] for line in lines if line["msg"] == "Log file opened"}


def has_open(pid: int, path: Path) -> bool:
    """Whether a process has the file open that now has a name."""
    return any(path.samefile(each) for each in Path(f"/proc/{pid}/fd").iterdir() if each.exists())


def rotated(log: Path) -> list[Path]:
    return sorted(log.parent.glob(f"{log.name}.20??-*"))


def wait_all_have_opened(log: Path, *, what: str) -> None:
    """Wait until the workers, and the process that started them, write to the new log."""
    eventually(lambda: len(openers(log)) == WORKERS + 1, what=what)


def test_log_shared_by_workers(cluster: RunningCluster, tmp_path: Path) -> None:
    log, audit = tmp_path / "router.log", tmp_path / "audit.json"
    options = ("--log-file", str(log), "--audit-destination", "file", "--audit-path", str(audit))
    with extra_router(cluster, "--workers", str(WORKERS), *options) as (address, process):
        eventually(lambda: log.read_text().count('"Listening"') == WORKERS, what="all workers serve")
        process.send_signal(signal.SIGUSR1)
        wait_all_have_opened(log, what="all processes follow SIGUSR1")
        (first,) = rotated(log)
        assert len(rotated(audit)) == 1
        log.rename(tmp_path / "moved")
        process.send_signal(signal.SIGUSR1)
        wait_all_have_opened(log, what="all processes leave a file that was moved")
        assert rotated(log) == [first]
        with client_of(address) as client:
            command(client, {"logRotate": 1}, until=lambda reply: reply.get("code") != 37)
        wait_all_have_opened(log, what="all processes follow logRotate")
        logs, audits = rotated(log), rotated(audit)
        assert len(logs) >= 2
        with client_of(address) as client:
            command(client, {"logRotate": "audit"}, until=lambda reply: reply.get("code") != 37)
        eventually(lambda: all(has_open(pid, audit) for pid in openers(log)), what="all processes follow for one log")
        assert (rotated(log), len(rotated(audit))) == (logs, len(audits) + 1)


def command(client: Client, document: dict[str, Any], *, until: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Repeat a command until its reply is as wanted, since two rotations within a second would need the same name."""

    def ask() -> dict[str, Any] | None:
        reply = run(client, document)
        return reply if until(reply) else None

    return eventually(ask, what=f"the answer to {document}")


def run(client: Client, document: dict[str, Any], db: str = "admin") -> dict[str, Any]:
    """The reply, failed or not, without the fields that differ between servers."""
    try:
        reply = client[db].command(document)
    except OperationFailure as error:
        reply = dict(error.details or {})
    return {name: value for name, value in reply.items() if name not in ("$clusterTime", "operationTime")}


UNFIT: Final[tuple[Any, ...]] = ("audit", "", {}, None, [])

REFUSED: Final[list[tuple[dict[str, Any], str]]] = [
    *[({"logRotate": value}, "admin") for value in UNFIT],
    ({"logRotate": 1, "x": 1}, "admin"),
    ({"logRotate": 1, "comment": "a comment"}, "test"),
]


@pytest.mark.parametrize(("document", "db"), REFUSED)
def test_refusals_are_those_of_mongod(cluster: RunningCluster, document: dict[str, Any], db: str) -> None:
    with cluster.direct("router.0") as router, cluster.direct("shard0.0.mongod") as mongod:
        expected = run(mongod, document, db)
        assert expected["ok"] == 0
        assert run(router, document, db) == expected


def test_starting_worker_survives_sigusr1(cluster: RunningCluster, tmp_path: Path) -> None:
    log = tmp_path / "router.log"
    with extra_router(cluster, "--workers", str(WORKERS), "--log-file", str(log), "--log-rotate", "reopen") as (
        _,
        process,
    ):
        process.send_signal(signal.SIGUSR1)  # one worker is ready; the others may be at any point of their start
        wait_all_have_opened(log, what="all processes obey")
        assert "A worker ended unexpectedly" not in log.read_text()
