"""Cursors on shards: reading their batches, and killing them in the background."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from struct import Struct
from typing import Final

import bson
import trio

from shardwright.router.reads.result_merger import FIRST_BATCH_DOCUMENTS
from shardwright.router.replies.cursor_reply import CursorReply
from shardwright.router.replies.shard_reply import ShardReply
from shardwright.router.sending.shard_sender import DigestRelay, PendingReply, ShardSender
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import BackendError
from shardwright.wire.frames import next_request_id
from shardwright.wire.logger import get_logger
from shardwright.wire.message import op_msg
from shardwright.wire.rawbson import INT64, STRING, element, encode_elements, from_elements, string_value
from shardwright.wire.transport.pool import Asked

_INT64: Final = Struct("<q")

_MERGED_BATCH_BYTES: Final = 1 << 20
"""Target size of a shard's batch in a merge. With 16 MB from each shard, few cursors would need much memory, and shards
would be idle while the router merges."""


@dataclass(slots=True)
class RemoteCursor:
    """A cursor that is open on one member of a shard.

    Attributes:
        address: the member that has the cursor and receives every ``getMore``.
        id: its id there; 0 once it is exhausted or lost.
        is_plain: whether its replies have no hidden fields, so that they can be relayed while they arrive.
        sources: the hosts whose cursors it reads.
    """

    sender: ShardSender = field(repr=False, compare=False)
    shard_id: str
    address: str
    namespace: str
    id: int
    is_plain: bool = False
    sources: tuple[str, ...] = ()
    _pending: PendingReply | None = field(default=None, init=False, repr=False, compare=False)
    _merged_batch_documents: int = field(default=FIRST_BATCH_DOCUMENTS, init=False, repr=False, compare=False)

    @classmethod
    def opened(cls, sender: ShardSender, reply: ShardReply, cursor: CursorReply) -> "RemoteCursor":
        """Return the cursor in a reply."""
        return cls(
            sender,
            reply.shard_id,
            reply.address,
            cursor.namespace,
            cursor.cursor_id,
            is_plain=reply.is_usual,
            sources=reply.sources,
        )

    @property
    def is_exhausted(self) -> bool:
        """Whether the shard has no more results."""
        return self.id == 0

    def get_more_frame(self, batch_size: int | None, elements: bytes) -> bytes:
        """Encode a ``getMore`` for this cursor.

        Args:
            batch_size: the number of documents, None for as many as fit.
            elements: further raw elements of the command, such as its ``lsid``.
        """
        db, _, collection = self.namespace.partition(".")
        parts = [
            element(b"getMore", INT64, _INT64.pack(self.id)),
            element(b"collection", STRING, string_value(collection)),
        ]
        if batch_size is not None:
            parts.append(element(b"batchSize", INT64, _INT64.pack(batch_size)))
        parts += (elements, element(b"$db", STRING, string_value(db)))
        return op_msg(from_elements(b"".join(parts)), request_id=next_request_id())

    def merged_batch_size(self, wanted: int | None) -> int:
        """Return how many documents to request next in a merge, about a megabyte's worth judging by earlier batches.

        Args:
            wanted: the number of documents that the merge still needs, None for all.
        """
        documents = self._merged_batch_documents
        return documents if wanted is None else min(documents, wanted)

    def note_merged_batch(self, documents: int, size: int) -> None:
        """Update the estimate of the document size."""
        self._merged_batch_documents = max(1, documents * _MERGED_BATCH_BYTES // size)

    async def exchange(self, frame: bytes, relay: DigestRelay | None = None) -> ShardReply:
        """Send a request to the member that has the cursor, unless sent in advance, and wait for the reply.

        After any failure the cursor counts as lost, because its position is unknown.

        Args:
            relay: relays a long reply; its digest is then returned.

        Raises:
            CommandError: HostUnreachable.
        """
        await self.ask_ahead(frame)
        pending, self._pending = self._pending, None
        assert pending is not None
        return await pending.receive(relay)

    def received(self, reply: ShardReply) -> CursorReply:
        """Return the batch in the reply to a ``getMore``, and note whether the cursor is exhausted.

        Raises:
            CommandError: the reply is an error.
        """
        if reply.error is not None:
            if reply.error.code == ErrorCode.CursorNotFound:
                self.id = 0
            raise reply.error
        cursor = CursorReply.of(reply)
        self.id = cursor.cursor_id
        return cursor

    @property
    def is_asked(self) -> bool:
        """Whether the request of the next `exchange` has been sent in advance."""
        return self._pending is not None

    def note_asked(self, asked: Asked, request_bytes: int) -> None:
        """Record that the request of the next `exchange` was sent by other code."""
        self._pending = self.sender.pending(self.shard_id, self.address, asked, request_bytes)

    def may_ask_ahead(self) -> bool:
        """Whether a request may be sent in advance, which can occupy a connection for long."""
        return self.sender.may_ask_ahead(self.shard_id, self.address)

    async def ask_ahead(self, frame: bytes) -> None:
        """Send the request of the next `exchange` in advance, so that the shard already works on it."""
        if self._pending is None:
            self._pending = await self.sender.ask(self.shard_id, self.address, frame, self.sources)

    async def wait_ready(self) -> None:
        """Wait until the reply to the request that was sent in advance begins to arrive.

        After a cancellation, the request stays in flight, and the next `exchange` receives its reply.
        """
        assert self._pending is not None
        await self._pending.wait_begun()

    def give_up(self) -> None:
        """Abandon the request that was sent in advance, if any."""
        if self._pending is not None:
            self._pending.give_up()
            self._pending = None

    async def kill(self) -> None:
        """Kill the cursor on the shard, without a session, because mongod accepts that from any session.

        Raises:
            BackendError: the member did not answer.
        """
        db, _, collection = self.namespace.partition(".")
        command = encode_elements({"killCursors": collection, "cursors": [bson.Int64(self.id)], "$db": db})
        await self.sender.exchange(self.address, op_msg(from_elements(command), request_id=next_request_id()))


logger = get_logger("router.cursors")

_KILL_SECONDS_MAX: Final = 60.0


class RemoteKiller:
    """Kills remote cursors. `run` must be running while it is used."""

    def __init__(self) -> None:
        self._to_kill, self._killing = trio.open_memory_channel[RemoteCursor](float("inf"))

    async def run(self) -> None:
        """Kill remote cursors until cancelled."""
        async with trio.open_nursery() as nursery:
            async for remote in self._killing:
                nursery.start_soon(_kill, remote)

    def kill(self, remotes: Iterable[RemoteCursor]) -> None:
        """Kill the cursors that are not exhausted, and discard batches that were requested in advance."""
        for remote in remotes:
            remote.give_up()
            if not remote.is_exhausted:
                self._to_kill.send_nowait(remote)


async def _kill(remote: RemoteCursor) -> None:
    """Kill a cursor on a shard. After a failure it will time out there."""
    try:
        with trio.fail_after(_KILL_SECONDS_MAX):
            await remote.kill()
    except (BackendError, trio.TooSlowError) as error:
        logger.debug("Could not kill a cursor on a shard", shard=remote.shard_id, error=str(error) or "timeout")
