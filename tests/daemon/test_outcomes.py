"""The outcomes of operations in metrics and the log of slow operations."""

import socket
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final

import bson
import pytest
import trio

from shardwright.daemon.operation_metrics import outcome_of_failure, outcome_of_reply, outcome_of_success
from shardwright.wire.errors import BackendError, CommandError, RemoteProtocolError
from shardwright.wire.message import MORE_TO_COME, OpMsg, op_msg
from shardwright.wire.request import Request
from shardwright.wire.transport.client_connection import ClientConnection
from shardwright.wire.transport.stream import FrameStream
from tests.transports import new_transport


@pytest.fixture
def client() -> Iterator[ClientConnection]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ClientConnection(FrameStream(ours), "a client", new_transport().unread_replies)


def ping(flags: int = 0) -> Request:
    return Request(OpMsg(op_msg(bson.encode({"ping": 1, "$db": "admin"}), request_id=1, flags=flags)))


@pytest.mark.parametrize(
    ("failure", "outcome"),
    [
        (CommandError(50, "too slow"), "MaxTimeMSExpired"),
        (BackendError("host:1", "closed the connection", sent=True), "HostUnreachable"),
        (RemoteProtocolError("nonsense"), "ProtocolError"),
        (BrokenPipeError("the client's"), "ClientDisconnect"),
        (ZeroDivisionError("oh"), "InternalError"),
        (BaseExceptionGroup("", [BaseExceptionGroup("", [CommandError(50, "too slow")])]), "MaxTimeMSExpired"),
    ],
)
def test_outcomes_of_failures(client: ClientConnection, failure: Exception, outcome: str) -> None:
    assert outcome_of_failure(failure, client) == outcome


async def cancelled(client: ClientConnection, found: list[str]) -> None:
    with trio.CancelScope() as scope:
        scope.cancel()
        try:
            await trio.lowlevel.checkpoint()
        except BaseException as failure:
            found.append(outcome_of_failure(failure, client))
            raise


async def cancelled_in_nursery(client: ClientConnection, found: list[str]) -> None:
    with trio.CancelScope() as scope:
        scope.cancel()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.sleep_forever)
                nursery.start_soon(trio.sleep_forever)
        except BaseException as failure:
            found.append(outcome_of_failure(failure, client))
            raise


@pytest.mark.parametrize("cancel", [cancelled, cancelled_in_nursery])
@pytest.mark.parametrize(("is_disconnected", "outcome"), [(True, "ClientDisconnect"), (False, "InterruptedAtShutdown")])
def test_cancelled_operation_was_abandoned_or_interrupted(
    client: ClientConnection,
    cancel: Callable[[ClientConnection, list[str]], Awaitable[None]],
    is_disconnected: bool,
    outcome: str,
) -> None:
    client.is_disconnected = is_disconnected
    found: list[str] = []
    trio.run(cancel, client, found)
    assert found == [outcome]


def test_reply_after_a_disconnect_is_not_a_success(client: ClientConnection) -> None:
    assert outcome_of_success(client, ping()) == "ok"
    client.is_disconnected = True
    assert outcome_of_success(client, ping()) == "ClientDisconnect"
    assert outcome_of_success(client, ping(MORE_TO_COME)) == "ok"


DUPLICATE: Final = {"index": 0, "code": 11000, "errmsg": "E11000 duplicate key error"}


@pytest.mark.parametrize(
    ("document", "outcome"),
    [
        ({"n": 1, "ok": 1.0}, ("ok", 0)),
        ({"ok": 0.0, "errmsg": "no", "code": 2, "codeName": "BadValue"}, ("BadValue", 2)),
        ({"ok": 0.0, "errmsg": "no", "code": 2}, ("BadValue", 2)),
        ({"ok": 0.0, "errmsg": "no"}, ("unknown", 0)),
        ({"n": 0, "writeErrors": [DUPLICATE], "ok": 1.0}, ("DuplicateKey", 11000)),
        ({"n": 0, "writeErrors": [{**DUPLICATE, "code": 51091}, DUPLICATE], "ok": 1.0}, ("Location51091", 51091)),
        ({"nModified": 0, "n": 3, "writeErrors": [DUPLICATE], "ok": 1.0}, ("DuplicateKey", 11000)),
        ({"n": 1, "upserted": [{"index": 0, "_id": {"writeErrors": [DUPLICATE]}}], "ok": 1.0}, ("ok", 0)),
        ({"cursor": {"firstBatch": [{"writeErrors": [DUPLICATE]}], "id": 0, "ns": "a.b"}, "ok": 1.0}, ("ok", 0)),
    ],
)
def test_outcomes_of_replies(document: dict[str, Any], outcome: tuple[str, int]) -> None:
    assert outcome_of_reply(op_msg(bson.encode(document), request_id=1)) == outcome
