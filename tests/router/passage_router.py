"""A router with real sockets, one collection, and shards that record requests and answer from a script."""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import count
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import bson
import trio
from bson import Binary, Int64, ObjectId
from bson.timestamp import Timestamp

from shardwright.daemon.audit_log import AuditLog
from shardwright.daemon.metrics import Metrics
from shardwright.daemon.tracing import TracingOptions
from shardwright.router.commands.router_commands import ROUTER_COMMANDS
from shardwright.router.context.options import RouterOptions
from shardwright.router.context.router_context import RouterContext
from shardwright.router.placement.routing_info import CollectionRouting, DatabaseRouting
from shardwright.router.routing.shards import Shard
from shardwright.router.tracing import dispatcher_of
from shardwright.router.transactions.transaction_table import TransactionTable
from shardwright.sharding.cluster_time import SigningKey, SigningKeys, pack_timestamp
from shardwright.sharding.routing_table import RoutingTable
from shardwright.sharding.versions import DatabaseVersion
from shardwright.wire.frames import FrameReader
from shardwright.wire.host_and_port import ConnectionString
from shardwright.wire.message import OpMsg, op_msg
from shardwright.wire.request import Request
from shardwright.wire.transport.reactor import REACTOR
from shardwright.wire.transport.server import Server
from tests.router.writes.builders import NAMESPACE, table
from tests.transports import new_transport
from tests.wire.transport.serving import RawClient, listen

SECONDS_MAX = 60
START = Timestamp(1_700_000_100, 1)
DATABASE, COLLECTION = NAMESPACE.split(".")
BY_KEY = table({"key": 1}, [{"key": 50}], ["east", "west"])

_DUMMY = {"hash": Binary(bytes(20)), "keyId": Int64(0)}


def times(time: Timestamp = START) -> dict[str, Any]:
    """The end of a mongod's reply."""
    return {"ok": 1.0, "$clusterTime": {"clusterTime": time, "signature": _DUMMY}, "operationTime": time}


def usual_reply(request: Request, time: Timestamp = START) -> dict[str, Any]:
    """The reply of a mongod to a successful command."""
    written = {"electionId": ObjectId(bytes(12)), "opTime": {"ts": time, "t": Int64(1)}}
    if request.name == "find":
        batch = [{"_id": 1, "asked": Binary(request.body)}]
        return {"cursor": {"firstBatch": batch, "id": Int64(0), "ns": NAMESPACE}, **times(time)}
    if request.name == "aggregate":
        return {"cursor": {"firstBatch": [], "id": Int64(0), "ns": NAMESPACE}, **times(time)}
    if request.name in ("findAndModify", "findandmodify"):
        return {"lastErrorObject": {"n": 1, "updatedExisting": True}, "value": {"_id": 1}, **times(time)}
    if request.name == "update":
        return {"n": 1, **written, "nModified": 1, **times(time)}
    return {"n": 1, **written, **times(time)} if request.name in ("insert", "delete") else times(time)


class Reply:
    """The reply of a shard.

    Attributes:
        document: the reply; None to close the connection.
        pieces: positions at which the frame is cut into pieces, which are sent one after the other.
        wait: awaited before the reply is sent.
    """

    def __init__(
        self,
        document: dict[str, Any] | None,
        pieces: Sequence[int] = (),
        wait: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        self.document = document
        self.pieces = pieces
        self.wait = wait


class PassageRouter:
    """The router and its shards.

    Attributes:
        context: the router's.
        server: serves clients.
        sent: what shards got: the shard, and the frame.
        loads: how often the routing was read.
        answer: answers a request to a shard, given the shard.
    """

    def __init__(self, context: RouterContext, server: Server, port: int) -> None:
        self.context = context
        self.server = server
        self.sent: list[tuple[str, bytes]] = []
        self.has_sent = trio.Event()
        self.gone: list[str] = []
        self.answer: Callable[[str, Request], dict[str, Any] | Reply] = lambda _, request: usual_reply(request)
        self._port = port
        self._table: RoutingTable | None = None
        self.loads = 0
        self._clients: list[RawClient] = []

    async def connect(self) -> RawClient:
        """A client."""
        client = RawClient(await trio.open_tcp_stream("127.0.0.1", self._port))
        self._clients.append(client)
        return client

    async def disconnect_all(self) -> None:
        """Close the connections of all clients."""
        for client in self._clients:
            await client.stream.aclose()

    def route(self, routing: RoutingTable | None, namespace: str = NAMESPACE) -> None:
        """Change the routing of a collection, sharded or not."""
        version = DatabaseVersion(UUID(int=1), Timestamp(5, 5), 1)
        database = self.context.routing.databases[DATABASE] = DatabaseRouting(DATABASE, "east", version)
        self.context.routing.collections[namespace] = CollectionRouting(namespace, database, routing, 77)
        self._table = routing

    async def load(self, namespace: str) -> CollectionRouting:
        """Read the routing; the catalog has what `route` was last given, for collections of other names too."""
        self.loads += 1
        self.route(self._table, namespace)
        return self.context.routing.collections[namespace]

    @property
    def outcomes(self) -> dict[str, int]:
        """The passages, by their outcome."""
        passages = self.server.passages
        return dict(cast("Any", passages)._outcomes)

    @property
    def taken(self) -> int:
        """The number of requests served by passages."""
        return self.outcomes["taken"]

    def counts(self) -> dict[str, Any]:
        """Return the counts of operations, without times."""
        context = self.context
        return {
            "operations": {name: each.outcomes for name, each in context.metrics.operations.statistics().items()},
            "statements": {kind.command: number for kind, number in context.statement_counts.items()},
            "targets": context.target_counts.document(),
            "shapes": {each["queryShapeHash"]: _without_times(each) for each in context.query_shapes.documents()},
            "sessions": sorted(map(str, context.sessions.sessions())),
            "on shards": {
                shard: (sum(each.buckets), each.bytes_sent, each.bytes_received)
                for shard, each in context.shard_counts.statistics(context.metrics.operations, ["east", "west"]).items()
            },
            "skew": [each.limit_shares._inequality for each in context.routing.collections.values()],
            "transactions": _transactions(context.transactions),
            "borrowed": self.borrowed,
            "loads": self.loads,
        }

    @property
    def borrowed(self) -> int:
        """The number of connections to shards in use."""
        return sum(each.in_use for each in self.context.pools.statistics().values())

    async def wait_until(self, holds: Callable[[], bool]) -> None:
        """Return when something holds."""
        while not holds():  # noqa: ASYNC110 - nothing tells of it
            await trio.sleep(0.01)

    async def serve_shard(self, shard: str, stream: trio.SocketStream) -> None:
        reader, request_ids = FrameReader(), count(1_000)
        async with stream:
            while True:
                while (frame := reader.next_frame()) is None:
                    data = await stream.receive_some(65_536)
                    if not data:
                        self.gone.append(shard)
                        return
                    reader.feed(bytes(data))
                request = Request(OpMsg(frame))
                if request.name == "hello":
                    reply = Reply({"isWritablePrimary": True, "ok": 1.0})
                else:
                    self.sent.append((shard, frame))
                    self.has_sent.set()
                    answer = self.answer(shard, request)
                    reply = answer if isinstance(answer, Reply) else Reply(answer)
                if reply.wait is not None:
                    await reply.wait()
                if reply.document is None:
                    return
                body = bson.encode(reply.document)
                data = op_msg(body, request_id=next(request_ids), response_to=request.message.request_id)
                for start, end in zip((0, *reply.pieces), (*reply.pieces, len(data)), strict=True):
                    await stream.send_all(data[start:end])
                    await trio.testing.wait_all_tasks_blocked() if reply.pieces else None


def _transactions(table: TransactionTable) -> dict[str, Any]:
    """Return the state of all transactions, and their counts."""
    states = {
        key.hex(): (
            session.is_active,
            session.is_idle,
            each.number,
            each.phase,
            each.statement,
            each.requests,
            each.recovery_shard,
            {shard: part.is_read_only for shard, part in each.participants.items()},
        )
        for key, session in table.sessions.items()
        if (each := session.transaction) is not None
    }
    counts = table.document()
    counts.pop("commitTypes")
    return {"states": states, "order": [*states], **counts}


def _without_times(document: dict[str, Any]) -> dict[str, Any]:
    """A document of ``$queryStats`` without what depends on the time."""
    timed = ("totalExecMicros", "histogram", "firstSeenTimestamp")
    metrics = {name: each for name, each in document["metrics"].items() if name not in timed}
    return {"key": document["key"], "metrics": metrics}


@asynccontextmanager
async def passage_router(
    routing: RoutingTable | None = BY_KEY,
    audit: AuditLog | None = None,
    tracing: TracingOptions | None = None,
    extensions: Collection[str] = (),
    **parameters: str,
) -> AsyncIterator[PassageRouter]:
    """Run a router in this process during the block; its shards announce these extensions."""
    assert REACTOR.start()
    options = RouterOptions(ConnectionString.parse("config/127.0.0.1:1"), "router.test:27017", parameters=parameters)
    options = replace(options, audit=audit, tracing=tracing)
    with trio.fail_after(SECONDS_MAX):
        async with trio.open_nursery() as nursery:
            transport = new_transport()
            metrics = Metrics("router", ROUTER_COMMANDS.names)
            context = RouterContext(options, transport, metrics, nursery, ROUTER_COMMANDS)
            context.signing_keys.are_read = True
            context.clock.observe_cluster_time(pack_timestamp(START))
            context.signer.keys = SigningKeys((SigningKey(7, b"k" * 20, pack_timestamp(Timestamp(2**31 - 1, 1))),))
            dispatcher = dispatcher_of(context)
            server = Server(transport, dispatcher)
            server.passages = dispatcher.passages
            context.clients.begin(server)
            listener = listen()
            router = PassageRouter(context, server, listener.getsockname()[1])
            router.route(routing)
            cast("Any", context.routing)._load_collection = router.load
            bits = count(1_000)
            cast("Any", context.cursors)._random_bits = lambda _: next(bits)
            nursery.start_soon(context.pools.run)
            nursery.start_soon(context.deadlines.run)
            if context.tracing is not None:
                nursery.start_soon(context.tracing.run)
            for shard in ("east", "west"):
                await _start_shard(nursery, router, shard, extensions)
            await nursery.start(server.serve, [listener])
            try:
                yield router
            finally:
                await router.disconnect_all()
                nursery.cancel_scope.cancel()


async def _start_shard(nursery: trio.Nursery, router: PassageRouter, shard: str, extensions: Collection[str]) -> None:
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    host, port = listeners[0].socket.getsockname()
    address = f"{host}:{port}"

    async def serve(stream: trio.SocketStream) -> None:
        await router.serve_shard(shard, stream)

    async def select(_: object) -> str:
        return address

    nursery.start_soon(trio.serve_listeners, serve, listeners)
    members = {address: SimpleNamespace(extensions=extensions)}
    monitor = SimpleNamespace(select=lambda _: address, members=members, readable=lambda: [*members])
    pools = router.context.pools
    client = SimpleNamespace(
        monitor=monitor,
        select=select,
        on_failure=lambda *_: None,
        ask=lambda member, frame: pools[member].ask(frame),
        has_spare_connections=lambda member: pools[member].has_spare_connections,
    )
    router.context.shards._shards[shard] = Shard(shard, cast("Any", client))


def command(fields: dict[str, Any], sections: bytes = b"", *, request_id: int = 1, flags: int = 0) -> bytes:
    """The frame of a client's command on the database."""
    body = bson.encode(fields if "$db" in fields else {**fields, "$db": DATABASE})
    return op_msg(body, request_id=request_id, sections=sections, flags=flags)


async def exchange(client: RawClient, frame: bytes) -> bytes | None:
    """Send a frame and receive one."""
    await client.send(frame)
    return await client.receive()
