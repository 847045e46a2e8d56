"""The change streams that are open on the shards, and reads from them until events may be returned.

In addition to the shards there is one more source, the *topology*: the list of shards as of some time. It has no
events. It holds events back until no further shard can have an earlier event. On a new shard, the stream begins at the
position of the router's stream.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import trio
from bson.timestamp import Timestamp

from shardwright.router.change_streams.merger import Event, EventMerger
from shardwright.router.change_streams.specification import Specification
from shardwright.router.change_streams.tokens import ResumeToken, after, token_in_sort_key
from shardwright.router.context.router_context import RouterContext
from shardwright.router.exec.remote import RemoteCursor
from shardwright.router.exec.stage import GetMore
from shardwright.router.reads.sort_order import sort_key_span
from shardwright.router.replies.cursor_reply import CursorReply
from shardwright.router.replies.shard_reply import ShardReply
from shardwright.sharding.cluster_time import pack_timestamp, unpack_timestamp
from shardwright.sharding.versions import CONFIG_SHARD
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.frames import next_request_id
from shardwright.wire.logger import get_logger
from shardwright.wire.message import op_msg
from shardwright.wire.rawbson import ARRAY, append, array_of_documents, element, encode_elements, without, without_spans
from shardwright.wire.read_preference import ReadPreference
from shardwright.wire.request import Request, raw_elements

PIPELINE: Final = b"pipeline"
CURSOR: Final = b"cursor"
LSID: Final = b"lsid"

_FOR_CLIENTS_ONLY: Final = frozenset(
    {PIPELINE, CURSOR, LSID, b"apiVersion", b"apiStrict", b"apiDeprecationErrors", b"maxTimeMS"}
)
"""Fields of the client's command that are replaced for shards, or that concern only the router."""


@dataclass(frozen=True, slots=True)
class ShardCommand:
    """The command that opens the stream on every shard, except for its start.

    Attributes:
        body: the client's command without the fields for the router.
        stages: raw stages that the shards run after ``$changeStream``.
    """

    body: bytes
    specification: Specification
    stages: tuple[bytes, ...]
    preference: ReadPreference

    @classmethod
    def of(
        cls, request: Request, specification: Specification, stages: Sequence[bytes], preference: ReadPreference
    ) -> "ShardCommand":
        """Build the command for shards from the client's command."""
        merging = encode_elements({"fromMongos": True, "needsMerge": True, "cursor": {"batchSize": 0}})
        body = append(without(request.body, _FOR_CLIENTS_ONLY), merging)
        return cls(body, specification, tuple(stages), preference)

    def frame(self, first: bytes, session: bytes) -> bytes:
        """Encode the request for one shard.

        Args:
            session: the raw element ``lsid`` of the client's current command, if it has one.
        """
        pipeline = element(PIPELINE, ARRAY, array_of_documents([first, *self.stages]))
        return op_msg(append(self.body, session + pipeline), request_id=next_request_id())


logger = get_logger("router.change_streams")

TOPOLOGY: Final = ""
"""The name of the source that is the list of shards; no shard has this name."""

_LONG_WAIT_MS: Final = 100
"""Longer waits of a shard are interrupted when another shard has an event. A mongod does not end the wait itself when
it could promise more, and opening a cursor again takes a few milliseconds."""

_AHEAD_BYTES_MAX: Final = 1024 * 1024
"""Shards with undelivered events are read ahead while all held events have at most this size."""

_TOPOLOGY_SECONDS_MAX: Final = 1.0
"""Longest wait of one read of a stream for the list of shards; the next read tries again."""

_PASSED_ON: Final = (LSID, b"comment", b"$clusterTime")
"""The fields of the client's ``getMore`` that are copied to a shard's."""


class ShardStreams:
    """Cursors on all shards, feeding one merger.

    Args:
        start: the cluster time of the initial list of shards.
    """

    def __init__(self, context: RouterContext, command: ShardCommand, start: Timestamp) -> None:
        self._context = context
        self._command = command
        self._remotes: dict[str, RemoteCursor] = {}
        self._lost: set[str] = set()
        self._topology = trio.Lock()
        self.merger = EventMerger()
        self.merger.add(TOPOLOGY, ResumeToken.high_water_mark(start))

    @property
    def remotes(self) -> Sequence[RemoteCursor]:
        """The cursors on shards, including exhausted ones."""
        return tuple(self._remotes.values())

    def adopt(self, reply: ShardReply) -> None:
        """Adopt the cursor that a shard has opened.

        Raises:
            RemoteProtocolError: the reply has no cursor of a change stream.
        """
        cursor = CursorReply.of(reply)
        if reply.shard_id not in self._remotes:
            self.merger.add(reply.shard_id, _promise(cursor))
        self._remotes[reply.shard_id] = RemoteCursor.opened(self._context.sender, reply, cursor)
        self._lost.discard(reply.shard_id)
        self._feed(reply.shard_id, cursor)

    async def reopen(self, get_more: GetMore, shard_id: str, token: ResumeToken) -> None:
        """Continue the stream of a shard after the event that has invalidated it."""
        await self._open(get_more, shard_id, self._command.specification.starting_after(token))

    async def read(self, get_more: GetMore, wait_ms: int, position: ResumeToken) -> None:
        """Read all sources that are needed to continue, once and concurrently.

        After a cancellation, requests that shards have not answered stay in flight for the next call.

        Args:
            wait_ms: how long shards may wait for events.
            position: the resume token of the router's stream.
        """
        await _Round(self, get_more, wait_ms, position).run()

    async def read_shard(self, get_more: GetMore, shard_id: str, wait_ms: int) -> ResumeToken | None:
        """Read a shard's next batch; return the token of its last event, None if it has no event."""
        if shard_id in self._lost:
            await self.restart(get_more, shard_id)
        remote = self._remotes[shard_id]
        if remote.is_exhausted:
            raise CommandError(ErrorCode.RetryChangeStream, f"the change stream of shard {shard_id} has ended")
        elements = raw_elements(get_more.request, _PASSED_ON) + encode_elements({"maxTimeMS": max(wait_ms, 1)})
        frame = remote.get_more_frame(get_more.batch_size, elements)
        await self._context.shards.get(shard_id)  # a stream does not stay with a shard that has been removed
        await remote.ask_ahead(frame)
        await remote.wait_ready()
        self._lost.add(shard_id)  # until the reply has arrived in full, the position of the cursor is uncertain
        reply = await remote.exchange(frame)
        self._lost.discard(shard_id)
        reply.raise_for_error()
        cursor = CursorReply.of(reply)
        remote.id = cursor.cursor_id
        return self._feed(shard_id, cursor)

    def readable_ahead(self) -> Sequence[str]:
        """Return the shards to read ahead although they have undelivered events; none if these use much memory."""
        if self.merger.held_bytes > _AHEAD_BYTES_MAX:
            return ()
        return [shard_id for shard_id, remote in self._remotes.items() if not remote.is_exhausted]

    async def read_topology(self, get_more: GetMore, position: ResumeToken) -> None:
        """Read the list of shards as of the newest promise, and open the stream on new shards.

        While the config servers do not answer, the stream waits.

        Args:
            position: the resume token of the router's stream.
        """
        start = self._command.specification.start_time
        if start is not None and pack_timestamp(start) > self._context.clock.time.cluster_time:
            return  # a start in the future: no shard has reached that time, and the config servers may not either
        wanted = self.merger.newest_promise
        async with self._topology:
            if not self.merger.is_behind(TOPOLOGY, wanted):
                return  # a read for another shard's event has covered this one
            as_of = pack_timestamp(self.merger.newest_promise.time) + 1
            promise = ResumeToken.high_water_mark(unpack_timestamp(as_of))
            shard_ids = await self._shards_as_of(as_of)
            if shard_ids is None:
                return
            for shard_id in shard_ids:
                if shard_id not in self._remotes:
                    await self._open(get_more, shard_id, self._command.specification.starting_at(position.time))
            self.merger.feed(TOPOLOGY, (), promise)

    async def _shards_as_of(self, time: int) -> Sequence[str] | None:
        """Read the list of shards as of a packed cluster time; None if the config servers do not answer soon."""
        shard_ids = None
        with trio.move_on_after(_TOPOLOGY_SECONDS_MAX):
            async with trio.open_nursery() as nursery:
                # Writes a no-op that commits at once; the read's own no-op could take until the next flush.
                nursery.start_soon(self._context.oplogs.pass_time, CONFIG_SHARD, unpack_timestamp(time))
                try:
                    shard_ids = await self._context.shards.reload_as_of(time)
                except CommandError as error:
                    logger.info("A change stream waits for the list of shards", error=str(error))
        return shard_ids

    async def restart(self, get_more: GetMore, shard_id: str) -> None:
        """Reopen the stream of a shard at its position, after an interrupted read."""
        self._context.cursors.kill_remotes([self._remotes[shard_id]])
        self._lost.add(shard_id)
        promise, specification = self.merger.promise_of(shard_id), self._command.specification
        is_time = promise.is_high_water_mark
        stage = specification.starting_at(promise.time) if is_time else specification.starting_after(promise)
        await self._open(get_more, shard_id, stage)

    async def pass_time(self, shard_id: str, time: Timestamp) -> bool:
        """Advance a shard to a cluster time, see `OplogAdvancer.pass_time`."""
        return await self._context.oplogs.pass_time(shard_id, time)

    async def _open(self, get_more: GetMore, shard_id: str, stage: bytes) -> None:
        frame = self._command.frame(stage, raw_elements(get_more.request, (LSID,)))
        reply = await self._context.sender.send(shard_id, frame, preference=self._command.preference, may_repeat=True)
        reply.raise_for_error()
        self.adopt(reply)

    def _feed(self, shard_id: str, cursor: CursorReply) -> ResumeToken | None:
        known = self.merger.promise_of(shard_id)
        events = [_event(shard_id, document) for document in cursor.documents()]
        if events and events[0].token <= known:
            # A stream that starts after an event returns this event first; a mongod relies on mongos to drop it.
            events = [event for event in events if event.token > known]
        promise = _promise(cursor)
        if promise.is_of_invalidation and not (events and events[-1].token == promise):
            # The stream was resumed after this event, whose token is not accepted for all kinds of resuming.
            promise = ResumeToken.high_water_mark(after(promise.time))
        self.merger.feed(shard_id, events, promise)
        return events[-1].token if events else None


class _Round:
    """One read of all sources that are needed to continue; see `ShardStreams.read` for the arguments."""

    def __init__(self, streams: ShardStreams, get_more: GetMore, wait_ms: int, position: ResumeToken) -> None:
        self._streams = streams
        self._get_more = get_more
        self._wait_ms = wait_ms
        self._position = position
        self._waiting: dict[str, trio.CancelScope] = {}
        self._failures: list[CommandError] = []

    async def run(self) -> None:
        """Read the sources; raise the first failure."""
        merger = self._streams.merger
        # Read so far that all held events can be returned, not only the first.
        time = None if merger.held_back is None else merger.newest_promise.time
        wanted = merger.wanted()
        async with trio.open_nursery() as nursery:
            for source in wanted:
                if source != TOPOLOGY or time is not None or merger.is_limited_by(TOPOLOGY):
                    nursery.start_soon(self._attempt, nursery, source, time)
            if time is not None:
                for source in self._streams.readable_ahead():
                    if source not in wanted:
                        nursery.start_soon(self._attempt_ahead, nursery, source)
        if self._failures:
            raise self._failures[0]

    async def _attempt(self, nursery: trio.Nursery, source: str, time: Timestamp | None) -> None:
        """Read one source. If ``time`` is given, the source holds back events up to that time."""
        try:
            if source == TOPOLOGY:
                await self._streams.read_topology(self._get_more, self._position)
            elif time is not None and await self._streams.pass_time(source, time):
                await self._streams.read_shard(self._get_more, source, 1)
            else:
                await self._wait(nursery, source)
        except CommandError as error:
            self._failures.append(_without_removed_shard(error))
            nursery.cancel_scope.cancel()

    async def _attempt_ahead(self, nursery: trio.Nursery, shard_id: str) -> None:
        """Read a shard that holds nothing back, so that its next events are merged in the same round."""
        try:
            await self._streams.read_shard(self._get_more, shard_id, 1)
        except CommandError as error:
            self._failures.append(_without_removed_shard(error))
            nursery.cancel_scope.cancel()

    async def _wait(self, nursery: trio.Nursery, shard_id: str) -> None:
        """Read a shard with a long wait for events. Its new events are not to wait for other shards."""
        newest = None
        with trio.CancelScope() as scope:
            self._waiting[shard_id] = scope
            newest = await self._streams.read_shard(self._get_more, shard_id, self._wait_ms)
        del self._waiting[shard_id]
        if scope.cancelled_caught:
            await self._streams.restart(self._get_more, shard_id)
        elif newest is not None:
            for other in self._streams.merger.behind(newest):
                if other == TOPOLOGY:
                    nursery.start_soon(self._attempt, nursery, other, newest.time)
                else:
                    nursery.start_soon(self._hasten, other, newest.time)

    async def _hasten(self, shard_id: str, time: Timestamp) -> None:
        """Advance a waiting shard to a time, and end its wait if it is long."""
        has_passed = await self._streams.pass_time(shard_id, time)
        if has_passed and self._wait_ms > _LONG_WAIT_MS and shard_id in self._waiting:
            self._waiting[shard_id].cancel()


def _without_removed_shard(error: CommandError) -> CommandError:
    """Convert the error for a removed shard, so that the client resumes the stream on the remaining shards."""
    return CommandError(ErrorCode.RetryChangeStream, error.message) if error.code == ErrorCode.ShardNotFound else error


def _promise(cursor: CursorReply) -> ResumeToken:
    return ResumeToken.received(cursor.post_batch_resume_token)


def _event(shard_id: str, document: bytes) -> Event:
    span = sort_key_span(document)
    return Event(shard_id, token_in_sort_key(document, span), without_spans(document, [span]))
