"""A router in this process without a cluster, for commands that it answers itself."""

import socket
from typing import Any

import bson
import trio

from shardwright.daemon.metrics import Metrics
from shardwright.router.access.login import Login
from shardwright.router.commands.router_commands import ROUTER_COMMANDS
from shardwright.router.context.options import RouterOptions
from shardwright.router.context.router_context import RouterContext
from shardwright.router.dispatcher import Dispatcher
from shardwright.wire.frames import next_request_id
from shardwright.wire.host_and_port import ConnectionString
from shardwright.wire.message import OpMsg, error_reply, op_msg
from shardwright.wire.request import Request
from shardwright.wire.transport.client_connection import ClientConnection
from shardwright.wire.transport.reactor import RequestLoop
from shardwright.wire.transport.stream import FrameStream
from tests.transports import new_transport

TEST_COMMANDS = {"enableTestCommands": "1"}


class LoneRouter:
    """A router whose config servers do not answer.

    Attributes:
        context: what its operations share.
        client: the connection of its only client.
    """

    def __init__(self, context: RouterContext, client: ClientConnection) -> None:
        self.context = context
        self.client = client
        self._dispatcher = Dispatcher(context)

    async def run(self, command: dict[str, Any], db: str = "admin") -> dict[str, Any]:
        """The reply to a command, failed or not."""
        frame = op_msg(bson.encode({**command, "$db": db}), request_id=next_request_id())
        reply: bytes | None = None

        async def serve() -> bool:
            nonlocal reply
            reply = await self._dispatcher.handle(self.client, Request(OpMsg(frame)))
            return False

        async def answer_interrupted() -> bool:
            nonlocal reply
            assert self.client.interruption is not None
            reply, self.client.interruption = error_reply(0, self.client.interruption), None
            return False

        self.client.loop = RequestLoop(serve, answer_interrupted)
        await self.client.loop.run()
        assert reply is not None
        return bson.decode(OpMsg(reply).body)


def run_lone(
    *commands: dict[str, Any], db: str = "admin", app_name: str = "", **parameters: str
) -> list[dict[str, Any]]:
    """The replies to commands of one client, from a router that was started with these parameters."""

    async def main() -> list[dict[str, Any]]:
        options = RouterOptions(
            ConnectionString.parse("config/127.0.0.1:1"), "router.test:27017", parameters=parameters
        )
        near, far = socket.socketpair()
        with near, far:
            transport = new_transport()
            async with trio.open_nursery() as nursery:
                metrics = Metrics("router", ROUTER_COMMANDS.names)
                client = ClientConnection(FrameStream(near), "127.0.0.1:5", transport.unread_replies)
                client.login = Login(client.log_in_changed)
                if app_name:
                    client.metadata = {"application": {"name": app_name}}
                router = LoneRouter(RouterContext(options, transport, metrics, nursery, ROUTER_COMMANDS), client)
                nursery.start_soon(router.context.deadlines.run)
                replies = [await router.run(command, db) for command in commands]
                nursery.cancel_scope.cancel()
        return replies

    return trio.run(main)


def run_one(command: dict[str, Any], db: str = "admin", **parameters: str) -> dict[str, Any]:
    """The reply to one command."""
    [reply] = run_lone(command, db=db, **parameters)
    return reply
