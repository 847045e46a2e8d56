"""``logRotate`` at a sidecar: its mongod authorizes the command and rotates its own logs."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import bson
import pytest
import trio

from shardwright.daemon.logs import FAILED, DaemonLogs, LogFile
from shardwright.daemon.sidecar.handler import rotate_both
from shardwright.wire.errors import CommandError
from shardwright.wire.message import OpMsg, op_msg
from shardwright.wire.request import Request
from shardwright.wire.tls import ProcessTls
from shardwright.wire.transport.client import decode_reply
from tests.daemon.sidecar.test_log_ins import FakeClient

NO_AUDIT_LOG = CommandError(4, FAILED, extra={"operationTime": 1})


@pytest.fixture
def audit(tmp_path: Path) -> Iterator[LogFile]:
    opened = LogFile(tmp_path / "audit.json")
    yield opened
    opened.close()


def rotate(kind: object, logs: DaemonLogs, failure: CommandError | None = None) -> dict[str, Any]:
    """The reply of a daemon whose mongod succeeds, or fails."""
    upstream = FakeClient().state
    if failure is not None:
        upstream.fails["logRotate"] = failure
    request = Request(OpMsg(op_msg(bson.encode({"logRotate": kind, "$db": "admin"}), request_id=1)))
    reply = trio.run(rotate_both, ProcessTls(), cast("Any", upstream), request, logs)
    assert reply is not None
    return decode_reply(reply)


def is_rotated(tmp_path: Path) -> bool:
    return bool(list(tmp_path.glob("audit.json.20*")))


@pytest.mark.parametrize(("kind", "expected"), [(1, True), (False, True), ("server", False)])
def test_the_daemon_does_what_its_mongod_did(audit: LogFile, tmp_path: Path, kind: object, expected: bool) -> None:
    assert rotate(kind, DaemonLogs(audit))["ok"] == 1
    assert is_rotated(tmp_path) is expected


def test_a_mongod_without_an_audit_log_still_decides_who_may(audit: LogFile, tmp_path: Path) -> None:
    unauthorized = CommandError(13, "not authorized")
    assert rotate("audit", DaemonLogs(audit), unauthorized)["code"] == 13
    assert not is_rotated(tmp_path)
    assert rotate("audit", DaemonLogs(audit), NO_AUDIT_LOG) == {"ok": 1.0, "operationTime": 1}
    assert is_rotated(tmp_path)


@pytest.mark.parametrize("kind", ["audit", "other"])
def test_logs_that_neither_has(kind: str) -> None:
    assert rotate(kind, DaemonLogs(), NO_AUDIT_LOG) == NO_AUDIT_LOG.reply()


def test_an_audit_log_that_only_the_mongod_has() -> None:
    assert rotate("audit", DaemonLogs())["ok"] == 1
