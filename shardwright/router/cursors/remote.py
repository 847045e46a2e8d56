"""A cursor on a shard, read by a cursor of the router; and killing those that none needs any longer."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from struct import Struct
from typing import Final

import bson
import trio

from shardwright.router.reads.merge import FIRST_BATCH_DOCUMENTS
from shardwright.router.replies.cursor_reply import CursorReply
from shardwright.router.replies.shard_reply import ShardReply
from shardwright.router.sending.pending_reply import DigestRelay, PendingReply
from shardwright.router.sending.shard_sender import ShardSender
from shardwright.wire.errors import BackendError
from shardwright.wire.frames import next_request_id
from shardwright.wire.logger import get_logger
from shardwright.wire.message import op_msg
from shardwright.wire.rawbson import INT64, STRING, element, encode_elements, from_elements, string_value

_INT64: Final = Struct("<q")

_MERGED_BATCH_BYTES: Final = 1 << 20
"""The size of a batch to ask a shard for in a merge. With 16 MB of each shard, few cursors would need much memory, and
shards would have nothing to do while the router merges."""


@dataclass(slots=True)
class RemoteCursor:
    """A cursor that is open on one member of a shard.

    Attributes:
        sender: sends requests to that member.
        shard_id: the shard.
        address: the member that has the cursor and gets every ``getMore``.
        namespace: ``db.collection`` by which ``getMore`` names it.
        id: its id there; 0 once it is exhausted, or gone.
        is_plain: its replies have no hidden fields, so they can be relayed while they are received.
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
        """The cursor named in a reply."""
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
        """Whether it has no more results."""
        return self.id == 0

    def get_more_frame(self, batch_size: int | None, elements: bytes) -> bytes:
        """A ``getMore`` for this cursor.

        Args:
            batch_size: how many documents to ask for, None for as many as fit.
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
        """How many documents to ask for next in a merge, as far as batches so far tell, for about a megabyte.

        Args:
            wanted: how many documents the merge needs at most, None for all.
        """
        documents = self._merged_batch_documents
        return documents if wanted is None else min(documents, wanted)

    def note_merged_batch(self, documents: int, size: int) -> None:
        """Learn how large documents are.

        Args:
            documents: how many were asked for.
            size: bytes of the reply.
        """
        self._merged_batch_documents = max(1, documents * _MERGED_BATCH_BYTES // size)

    async def exchange(self, frame: bytes, relay: DigestRelay | None = None) -> ShardReply:
        """Send a request to the member that has the cursor, unless it was asked ahead, and wait for the reply.

        After any failure the cursor counts as lost, since its position is unknown.

        Args:
            frame: the request.
            relay: relays a long reply; its digest is then returned.

        Raises:
            CommandError: HostUnreachable.
        """
        await self.ask_ahead(frame)
        pending, self._pending = self._pending, None
        assert pending is not None
        return await pending.receive(relay)

    def may_ask_ahead(self) -> bool:
        """Whether the reply may occupy a connection until it is read, which can take long."""
        return self.sender.may_ask_ahead(self.shard_id, self.address)

    async def ask_ahead(self, frame: bytes) -> None:
        """Send the request of the next `exchange` in advance, so that the shard works on it in the meantime.

        Raises:
            CommandError: as `exchange`.
        """
        if self._pending is None:
            self._pending = await self.sender.ask(self.shard_id, self.address, frame, self.sources)

    async def wait_ready(self) -> None:
        """Wait until the reply to the request that was sent in advance begins to arrive.

        If this is cancelled, the request stays sent, and the next `exchange` gets its reply.
        """
        assert self._pending is not None
        await self._pending.wait_begun()

    def give_up(self) -> None:
        """Abandon the request that was sent in advance."""
        if self._pending is not None:
            self._pending.give_up()
            self._pending = None

    async def kill(self) -> None:
        """End the cursor on the shard. Without a session: mongod lets any session kill a cursor.

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
        """Kill those that are not exhausted, and discard the batches that were requested ahead of time."""
        for remote in remotes:
            remote.give_up()
            if not remote.is_exhausted:
                self._to_kill.send_nowait(remote)


async def _kill(remote: RemoteCursor) -> None:
    """Kill a cursor on a shard; one that cannot be killed now times out there."""
    try:
        with trio.fail_after(_KILL_SECONDS_MAX):
            await remote.kill()
    except (BackendError, trio.TooSlowError) as error:
        logger.debug("Could not kill a cursor on a shard", shard=remote.shard_id, error=str(error) or "timeout")
