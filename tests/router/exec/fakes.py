"""Shards that answer from a script and record the requests."""

from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, cast

import bson
import trio

from shardwright.router.exec.stage import GetMore
from shardwright.router.replies.shard_reply import ShardReply
from shardwright.router.sending.shard_sender import PendingReply, unreachable
from shardwright.sharding.clock import VectorClock
from shardwright.wire.errors import BackendError
from shardwright.wire.message import OpMsg, op_msg
from tests.router.reads.requests import request

if TYPE_CHECKING:
    from shardwright.wire.transport.client_connection import ClientConnection

Documents = list[dict[str, Any]]


class FakeShard:
    """A shard with one cursor of id 100 over some documents.

    Attributes:
        asked: the commands it received, decoded.
        failure: raised instead of an answer, or an error document to answer with.
        documents_max: how many documents it returns at once.
        given_up: how many requests were given up before they were answered.
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

    def ask(self, frame: bytes) -> "FakePendingReply":
        """Take a request."""
        command = bson.decode(OpMsg(frame).body)
        self.asked.append(command)
        return FakePendingReply(self, command)

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


class FakePendingReply:
    """A request whose answer has not been read."""

    def __init__(self, shard: FakeShard, command: dict[str, Any]) -> None:
        self._shard = shard
        self._command = command

    async def receive(self, relay: object) -> ShardReply:
        """The reply."""
        shard = self._shard
        try:
            return ShardReply(shard.name, shard.address, await shard.answer(self._command))
        except BackendError as error:
            raise unreachable(shard.name, error) from error

    def give_up(self) -> None:
        """The reply is no longer wanted."""
        self._shard.given_up += 1


class FakeSender:
    """Sends requests to these shards."""

    def __init__(self, shards: Iterable[FakeShard]) -> None:
        self._shards = {shard.name: shard for shard in shards}
        self.clock = VectorClock()

    async def ask(self, shard_id: str, address: str, frame: bytes, sources: tuple[str, ...] = ()) -> PendingReply:
        """Send a request whose reply is read later."""
        shard = self._shards[shard_id]
        assert (address, sources) == (shard.address, ())
        return cast("PendingReply", shard.ask(frame))

    def may_ask_ahead(self, shard_id: str, address: str) -> bool:
        """Whether a shard may be asked ahead."""
        return not self._shards[shard_id].is_busy


def get_more(
    batch_size: int | None = None, max_time_ms: int | None = None, command: dict[str, Any] | None = None
) -> GetMore:
    """A client's getMore, or another command."""
    found = request(command or {"getMore": bson.Int64(5), "collection": "c"})
    return GetMore(found, cast("ClientConnection", None), 5, batch_size, max_time_ms)


def batch_of(frame: bytes | None) -> Documents:
    """The documents of a cursor reply."""
    cursor = cursor_of(frame)
    return cast("Documents", cursor["firstBatch"] if "firstBatch" in cursor else cursor["nextBatch"])


def cursor_of(frame: bytes | None) -> dict[str, Any]:
    """The cursor of a reply."""
    assert frame is not None
    return cast("dict[str, Any]", bson.decode(OpMsg(frame).body)["cursor"])
