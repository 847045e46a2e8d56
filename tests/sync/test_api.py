"""Requests to the HTTP API of a replication that cannot be answered."""

import asyncio
import json
from typing import TYPE_CHECKING, Any, cast

import pytest
from pymongo.errors import ServerSelectionTimeoutError

from shardwright.sync.api import LOOPBACK, Api
from shardwright.sync.comparing import NoMomentError
from shardwright.sync.replication import StateError

if TYPE_CHECKING:
    from shardwright.sync.session import Sync


class FailingSync:
    """A replication whose failures cannot be read, and which cannot be resumed or verified."""

    async def failures(self) -> list[Any]:
        raise ServerSelectionTimeoutError("no primary")

    async def resume(self, *, retry_failures: bool) -> None:
        raise StateError(f"not paused ({retry_failures})")

    async def verify(self) -> None:
        raise NoMomentError("no moment")


@pytest.mark.parametrize(
    ("method", "name", "body", "status", "text"),
    [
        ("GET", "failures", b"", 503, "no primary"),
        ("POST", "resume", b'{"retryFailures": true}', 409, "not paused (True)"),
        ("POST", "verify", b"", 409, "no moment"),
        ("POST", "resume", b"[]", 400, "must be a JSON object"),
        ("POST", "resume", b"{", 400, "Expecting property name"),
        ("POST", "resume", b"\xff", 400, "decode"),
        ("GET", "nothing", b"", 404, "no GET nothing"),
        ("POST", "resume", b"[" * 100_000, 400, "recursion"),
        ("POST", "commit HTTP/1.1\r\nOrigin: http://example.com\r\nX: ", b"", 403, "web pages"),
    ],
)
def test_errors_are_answered(method: str, name: str, body: bytes, status: int, text: str) -> None:
    async def ask() -> bytes:
        server = await asyncio.start_server(Api(cast("Sync", FailingSync())).serve, LOOPBACK)
        async with server:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            head = f"{method} /api/v1/{name} HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n"
            writer.write(f"{head}Connection: close\r\n\r\n".encode() + body)
            answer = await reader.read()
            writer.close()
            await writer.wait_closed()
        return answer

    head, _, answer = asyncio.run(ask()).partition(b"\r\n\r\n")
    assert int(head.split()[1]) == status
    document = json.loads(answer)
    assert document["success"] is False
    assert text in document["error"]
