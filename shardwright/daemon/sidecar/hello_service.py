"""Answering hello in place of the mongod: with mongod's reply, but with the addresses of the daemons.

A plain hello is sent to the mongod on the client's own connection, so that mongod sees the client's metadata and checks
the request. An awaitable hello is served from the mirror.
"""

from typing import Final

import bson
import trio

from shardwright.daemon.sidecar.hello_mirror import HelloMirror
from shardwright.daemon.sidecar.upstream import Upstream
from shardwright.wire import compression
from shardwright.wire.frames import next_request_id
from shardwright.wire.hello import HELLO_NAMES, HelloRequest, await_budget_ms, parse_hello
from shardwright.wire.message import MORE_TO_COME, op_msg, reply_document
from shardwright.wire.rawbson import without
from shardwright.wire.request import Request
from shardwright.wire.transport.client import decode_reply
from shardwright.wire.transport.client_connection import ClientConnection

_OF_ONE_CLIENT: Final = frozenset({"saslSupportedMechs", "speculativeAuthenticate"})
"""Fields of a reply that are about the client who asked."""

__all__ = ["HELLO_NAMES", "answer_hello"]


async def answer_hello(
    mirror: HelloMirror, upstream: Upstream, client: ClientConnection, request: Request
) -> bytes | None:
    """The reply frame to a hello in any spelling; None if mongod is gone, because then there is nothing to report.

    Raises:
        CommandError: the request is malformed; ShutdownInProgress, the daemon is in quiesce mode.
        BackendError: mongod could not be asked.
    """
    message = request.message
    hello = parse_hello(request.body, request.fields, exhaust_allowed=message.is_exhaust_allowed)
    mirror.check_not_quiescing()
    if hello.topology_version is None:
        return await _ask_mongod(mirror, upstream, client, request, hello)
    request_id = message.request_id
    while True:
        client.allow_interruption()
        await _wait_for_news(mirror, hello)
        mirror.check_not_quiescing()
        body = mirror.current_reply(upstream.connection_id or client.id)
        if body is None:
            return None
        if request.name != "hello":
            body["ismaster"] = body.pop("isWritablePrimary")
        if not hello.exhaust_allowed:
            return reply_document(request_id, body)
        hello = hello.following(mirror.version)
        reply_id = next_request_id()
        await client.send(op_msg(bson.encode(body), request_id=reply_id, response_to=request_id, flags=MORE_TO_COME))
        request_id = reply_id


async def _wait_for_news(mirror: HelloMirror, hello: HelloRequest) -> None:
    """Wait for a topology that the client does not know, as long as the client allows."""
    milliseconds = await_budget_ms(hello, mirror.version)
    if milliseconds is not None and mirror.hello is not None:
        with trio.move_on_after(milliseconds / 1000):
            await mirror.wait_for_change()


async def _ask_mongod(
    mirror: HelloMirror, upstream: Upstream, client: ClientConnection, request: Request, hello: HelloRequest
) -> bytes:
    # Compression is negotiated between client and daemon; it is useless on the UNIX socket.
    body = without(request.body, {b"compression"})
    frame = await upstream.forward(op_msg(body, request_id=request.message.request_id), 0)
    assert frame is not None
    reply = decode_reply(frame)
    if not reply.get("ok"):
        return frame
    if "isWritablePrimary" in reply:
        mirror.observe({name: value for name, value in reply.items() if name not in _OF_ONE_CLIENT})
    upstream.connection_id = reply.get("connectionId")
    if b"client" in request.fields:
        client.metadata = request.get(b"client")
    reply = mirror.present(reply)
    if hello.compression is not None:
        client.compressors = tuple(compression.negotiate(hello.compression))
        if client.compressors:
            reply["compression"] = list(client.compressors)
    return reply_document(request.message.request_id, reply)
