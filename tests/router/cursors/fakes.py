"""Shards that answer from a script, and note what they were asked."""

from collections.abc import Awaitable, Callable, Iterable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import bson
import trio

from shardwright.router.operation import Operation
from shardwright.router.sending.shard_reply import ShardReply
from shardwright.wire.errors import BackendError
from shardwright.wire.message import OpMsg, op_msg
from tests.router.reads.requests import request

if TYPE_CHECKING:
    from shardwright.wire.transport.client_connection import ClientConnection

Documents = list[dict[str, Any]]


class FakeShard:
    """A shard with one cursor of id 100 over some documents.

    Attributes:
        asked: the commands it got, decoded.
        failure: raised instead of an answer, or an error document to answer with.
        documents_max: how many documents it returns at once.
        given_up: how many requests nobody wanted the answer to in the end.
        is_busy: many connections to it are in use.
    """

    def __init__(self, name: str, documents: Iterable[dict[str, Any]], first: int = 0) -> None:
        self.name = name
        self.address = f"{name}.example:1"
        self.asked: list[dict[str, Any]] = []
        self.failure: BackendError | dict[str, Any] | None = None
        self.before_answer: Callable[[], Awaitable[None]] | None = None
        self.documents_max = 1_000
        self.given_up = 0
        self.is_busy = False
        self._documents = list(documents)
        self.opening = ShardReply(name, self.address, self._answer("firstBatch", first))

    @property
    def client(self) -> "FakeShard":
        """Stands for the replica set client too."""
        return self

    def has_spare_connections(self, address: str) -> bool:
        """Whether it may be asked ahead."""
        return not self.is_busy

    async def ask(self, address: str, frame: bytes) -> "FakeAsked":
        """Take a request."""
        assert address == self.address
        command = bson.decode(OpMsg(frame).body)
        self.asked.append(command)
        return FakeAsked(self, command)

    def on_failure(self, address: str, error: Exception) -> None:
        """Somebody met an error."""
        assert address == self.address

    async def answer(self, command: dict[str, Any]) -> bytes:
        """Answer a request."""
        await trio.lowlevel.checkpoint()
        if self.before_answer is not None:
            await self.before_answer()
        if isinstance(self.failure, BackendError):
            raise self.failure
        if self.failure is not None:
            return op_msg(bson.encode(self.failure), request_id=1)
        return self._answer("nextBatch", min(command.get("batchSize", self.documents_max), self.documents_max))

    def _answer(self, batch: str, count: int) -> bytes:
        returned, self._documents = self._documents[:count], self._documents[count:]
        cursor = {batch: returned, "id": bson.Int64(100 if self._documents else 0), "ns": "test.c"}
        return op_msg(bson.encode({"cursor": cursor, "ok": 1.0}), request_id=1)


class FakeAsked:
    """A request whose answer has not been read."""

    def __init__(self, shard: FakeShard, command: dict[str, Any]) -> None:
        self._shard = shard
        self._command = command

    async def receive_answer(self, relay: object) -> bytes:
        """The answer."""
        return await self._shard.answer(self._command)

    def give_up(self) -> None:
        """It is not wanted any more."""
        self._shard.given_up += 1


def operation(shards: Iterable[FakeShard], command: dict[str, Any] | None = None) -> Operation:
    """A getMore, or another command, under way in a router that knows these shards."""
    by_name = {shard.name: shard for shard in shards}
    router = SimpleNamespace(
        shards=SimpleNamespace(get_known=by_name.get),
        clock=SimpleNamespace(observe=lambda _body, _fields: None),
        gossip=dict,
    )
    found = request(command or {"getMore": bson.Int64(5), "collection": "c"})
    return Operation(cast("Any", router), cast("ClientConnection", None), found)


def batch_of(frame: bytes | None) -> Documents:
    """The documents of a cursor reply."""
    cursor = cursor_of(frame)
    return cast("Documents", cursor["firstBatch"] if "firstBatch" in cursor else cursor["nextBatch"])


def cursor_of(frame: bytes | None) -> dict[str, Any]:
    """The cursor of a reply."""
    assert frame is not None
    return cast("dict[str, Any]", bson.decode(OpMsg(frame).body)["cursor"])
