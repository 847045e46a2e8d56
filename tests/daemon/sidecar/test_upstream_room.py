"""A long reply of the mongod that exceeds the available memory."""

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
import trio

from shardwright.daemon.sidecar.mongod import Upstream
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.request import Request
from shardwright.wire.transport.client_connection import ClientConnection
from shardwright.wire.transport.reservations import UnreadBounds
from shardwright.wire.transport.stream import FrameStream
from shardwright.wire.transport.transport import Transport
from tests.wire.transport.serving import serving
from tests.wire.transport.test_reservations import Shard, asked, no_room

if TYPE_CHECKING:
    from shardwright.daemon.sidecar.mongod import LocalMongod


@pytest.mark.parametrize("method", ["forward", "pass_on"])
async def test_the_client_gets_an_error_and_is_disconnected(transport: Transport, method: str) -> None:
    transport.unread_replies.bounds = UnreadBounds(patience_seconds=0.1)
    mongod = Shard()

    async def answer(client: ClientConnection, request: Request) -> dict[str, Any] | None:
        client.allow_interruption()
        pool = SimpleNamespace(end_request=FrameStream.close)
        local = SimpleNamespace(transport=transport, socket_path=mongod.address, pool=pool)
        upstream = Upstream(cast("LocalMongod", local), client)
        if method == "forward":
            await upstream.forward(request.message.frame, 0)
        else:
            client.is_answered_verbatim = True
            await upstream.pass_on(request.message.frame, 0, lambda: False)
        return None

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, mongod.serve, 0)
        mongod.address = f"127.0.0.1:{listeners[0].socket.getsockname()[1]}"
        async with serving(answer, transport) as served:
            with no_room(transport):
                (client,) = await asked(served, 1)
                assert (await client.receive_document())["code"] == ErrorCode.ExceededMemoryLimit
                assert await client.receive() is None
        nursery.cancel_scope.cancel()
