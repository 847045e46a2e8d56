"""The label of errors after which drivers send a write again."""

from types import SimpleNamespace
from typing import Any, cast

import bson
import pytest
import trio

from shardwright.daemon.logs import DaemonLogs
from shardwright.daemon.sidecar.handler import SidecarHandler, label_retryable_write
from shardwright.daemon.sidecar.mongod import Upstream
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.logger import get_logger
from shardwright.wire.message import OpMsg, op_msg
from shardwright.wire.request import Request
from shardwright.wire.transport.client_connection import ClientConnection
from tests.transports import new_transport

WRITE = {"update": "c", "updates": [], "txnNumber": 1}


def request_of(command: dict[str, Any]) -> Request:
    return Request(OpMsg(op_msg(bson.encode({**command, "$db": "db"}), request_id=1)))


@pytest.mark.parametrize(
    ("command", "code", "labels"),
    [
        (WRITE, ErrorCode.NotWritablePrimary, ("RetryableWriteError",)),
        ({"findAndModify": "c", "txnNumber": 1}, ErrorCode.PrimarySteppedDown, ("RetryableWriteError",)),
        (WRITE, ErrorCode.DuplicateKey, ()),
        (WRITE, ErrorCode.StaleConfig, ()),
        ({"update": "c", "updates": []}, ErrorCode.NotWritablePrimary, ()),
        ({**WRITE, "autocommit": False}, ErrorCode.NotWritablePrimary, ()),
        ({"_shardsvrDropCollectionParticipant": "c", "txnNumber": 1}, ErrorCode.NotWritablePrimary, ()),
    ],
)
def test_only_retryable_errors_of_retryable_writes_have_it(
    command: dict[str, Any], code: ErrorCode, labels: tuple[str, ...]
) -> None:
    error = CommandError(code, "refused")
    for _ in range(2):
        label_retryable_write(error, request_of(command))
        assert tuple(error.labels) == labels


class Refusing(SidecarHandler):
    """Refuses everything, as a daemon does whose mongod has just stepped down."""

    async def dispatch(self, client: ClientConnection, upstream: Upstream, request: Request) -> bytes | None:
        raise CommandError(ErrorCode.NotWritablePrimary, "not primary")

    def namespace_of(self, request: Request) -> str:
        return "db.c"


def test_a_daemon_labels_its_own_errors() -> None:
    metrics = SimpleNamespace(operations=SimpleNamespace(observe=lambda *_: None))
    unused = cast("Any", None)
    sidecar = cast("Any", SimpleNamespace(transport=new_transport()))
    handler = Refusing(sidecar, cast("Any", metrics), 10_000, get_logger("test"), unused, DaemonLogs())
    client = cast("ClientConnection", SimpleNamespace(state=None, begun=None, id=1, is_disconnected=False))
    with pytest.raises(CommandError) as caught:
        trio.run(handler.handle, client, request_of(WRITE))
    assert caught.value.reply()["errorLabels"] == ["RetryableWriteError"]
