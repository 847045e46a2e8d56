"""A fake replica set of one member, which serves as a shard in tests of the config daemon.

It serves real connections, so that the config daemon reaches it like any shard, and records commands.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import trio
from bson.int64 import Int64

from shardwright.daemon.run import open_listeners
from shardwright.sharding.feature_version import EXTENSIONS
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.message import reply_document
from shardwright.wire.request import Request
from shardwright.wire.transport.client_connection import ClientConnection
from shardwright.wire.transport.server import Server
from tests.transports import new_transport


class FakeShard:
    """The set and its one member.

    Attributes:
        set_name: the name of the replica set.
        address: ``host:port`` of the member.
        hello: fields of its hello that differ from a primary's.
        databases: the result of listDatabases, with sizes in bytes.
        failures: errors by the name of the command that should fail with them.
        found: results of ``find``, by the collection.
        members: further members in the configuration of the set.
        held: events by the name of the command whose replies wait for them.
        commands: the received commands, except hello.
        arrived: notified of each of them.
    """

    def __init__(self, set_name: str, address: str) -> None:
        self.set_name = set_name
        self.address = address
        self.hello: dict[str, Any] = {}
        self.databases: dict[str, int] = {}
        self.failures: dict[str, CommandError] = {}
        self.found: dict[str, list[dict[str, Any]]] = {}
        self.members: list[dict[str, Any]] = []
        self.held: dict[str, threading.Event] = {}
        self.commands: list[dict[str, Any]] = []
        self.arrived = threading.Condition()

    @property
    def connection_string(self) -> str:
        """The connection string for ``addShard``."""
        return f"{self.set_name}/{self.address}"

    def received(self, name: str) -> list[dict[str, Any]]:
        """The received commands with a name, in order."""
        return [command for command in self.commands if name in command]

    async def handle(self, client: ClientConnection, request: Request) -> bytes | None:
        """Answer one request."""
        if request.name == "hello":
            # Without a topologyVersion, so that nobody sends an awaitable hello.
            return reply_document(request.message.request_id, {**self._hello(), "ok": 1.0})
        with self.arrived:
            self.commands.append(request.document)
            self.arrived.notify_all()
        if self.is_held(request):
            await trio.to_thread.run_sync(self.held[request.name].wait, abandon_on_cancel=True)
        if request.name in self.failures:
            raise self.failures[request.name]
        return reply_document(request.message.request_id, {**self.answer(request), "ok": 1.0})

    def is_held(self, request: Request) -> bool:
        """Whether the reply to a command has to wait for an event."""
        return request.name in self.held

    def answer(self, request: Request) -> Mapping[str, Any]:
        """The reply to a command, without ``ok``."""
        if request.name == "find":
            found = self.found.get(request.document["find"], [])
            return {"cursor": {"id": Int64(0), "ns": "config.c", "firstBatch": found}}
        answer = _ANSWERS.get(request.name)
        return {} if answer is None else answer(self)

    def connection_opened(self, client: ClientConnection) -> None:
        """Nothing to do."""

    def connection_closed(self, client: ClientConnection) -> None:
        """Nothing to do."""

    def _hello(self) -> dict[str, Any]:
        hello = {
            "isWritablePrimary": True,
            "secondary": False,
            "setName": self.set_name,
            "hosts": [self.address],
            "primary": self.address,
            "me": self.address,
            "minWireVersion": 0,
            "maxWireVersion": 17,
            "extensions": list(EXTENSIONS),
        }
        return {name: value for name, value in {**hello, **self.hello}.items() if value is not None}

    def _list_databases(self) -> dict[str, Any]:
        databases = [{"name": name, "sizeOnDisk": size, "empty": False} for name, size in self.databases.items()]
        return {"databases": databases, "totalSize": sum(self.databases.values())}

    def _configuration(self) -> dict[str, Any]:
        hosts = [self.address, *(each for each in self._hello().get("hosts", ()) if each != self.address)]
        return {"config": {"_id": self.set_name, "members": [*({"host": each} for each in hosts), *self.members]}}

    def _drop(self) -> dict[str, Any]:
        raise CommandError(ErrorCode.NamespaceNotFound, "ns not found")


Shard = TypeVar("Shard", bound=FakeShard)

_ANSWERS: Mapping[str, Callable[[FakeShard], dict[str, Any]]] = {
    "replSetGetConfig": FakeShard._configuration,
    "listDatabases": FakeShard._list_databases,
    "drop": FakeShard._drop,
}


@contextmanager
def fake_shards(*set_names: str) -> Iterator[dict[str, FakeShard]]:
    """Serve sets with these names while the block runs."""
    with serving(FakeShard, *set_names) as shards:
        yield shards


@contextmanager
def serving(kind: Callable[[str, str], Shard], *set_names: str) -> Iterator[dict[str, Shard]]:
    """As `fake_shards`, with shards of another class."""
    listeners = {name: open_listeners(["127.0.0.1"], 0) for name in set_names}
    shards = {name: kind(name, f"127.0.0.1:{each[0].getsockname()[1]}") for name, each in listeners.items()}
    started = threading.Event()
    stop: list[Callable[[], object]] = []

    async def serve() -> None:
        async with trio.open_nursery() as nursery:
            token = trio.lowlevel.current_trio_token()
            stop.append(lambda: token.run_sync_soon(nursery.cancel_scope.cancel))
            for name, shard in shards.items():
                await nursery.start(Server(new_transport(), shard).serve, listeners[name])
            started.set()

    thread = threading.Thread(target=trio.run, args=(serve,))
    thread.start()
    try:
        started.wait(10)
        yield shards
    finally:
        stop[0]()
        thread.join(10)
