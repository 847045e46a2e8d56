"""The stage of a change stream: merges events of all shards, waits for them, and transforms them for the client."""

import math
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final

import trio

from shardwright.router.change_streams.catalog_events import CATALOG_EVENTS, INVALIDATE, operation_type
from shardwright.router.change_streams.changelog import CatalogOwner, ShardingEvents
from shardwright.router.change_streams.commands import Commands, look_up_each
from shardwright.router.change_streams.errors import id_modified, token_not_found
from shardwright.router.change_streams.event_documents import Images, KeyCompletion, without_internal_fields
from shardwright.router.change_streams.merger import Event
from shardwright.router.change_streams.orphan_deletions import OrphanDeletions
from shardwright.router.change_streams.shard_streams import ShardStreams
from shardwright.router.change_streams.specification import ClientStages, token_of
from shardwright.router.change_streams.tokens import ResumeToken
from shardwright.router.exec.remote import RemoteCursor
from shardwright.router.exec.stage import GetMore, Stage
from shardwright.router.reads.result_merger import Batch
from shardwright.wire.limits import check_size
from shardwright.wire.rawbson import find

Shown = tuple[ResumeToken, bytes]
"""The token of an event, and the raw document for the client."""


class EventView:
    """Transforms merged events of one stream for its client.

    Args:
        images: adds images; None if the stream has none.
        sharding: recognizes ``shardCollection``; None if the stream does not show it.
    """

    def __init__(
        self,
        images: Images | None,
        stages: ClientStages,
        commands: Commands,
        keys: KeyCompletion,
        sharding: ShardingEvents | None,
        orphans: OrphanDeletions,
    ) -> None:
        self._images = images
        self._stages = stages
        self._commands = commands
        self._keys = keys
        self._sharding = sharding
        self._orphans = orphans

    async def of(self, events: Sequence[Event]) -> list[Shown]:
        """Return the client's view of events; its stages may reject some.

        Raises:
            CommandError: BSONObjectTooLarge, an event is too large; ChangeStreamFatalError, the stages changed an
                ``_id``; or a look-up or an expression failed.
        """
        events = await self._orphans.left_out(events)
        if not events:
            return []
        if self._sharding is not None:
            events = [await self._sharding.shown(event) for event in events]
        completed = await self._completed(events)
        if not self._must_be_evaluated(events):
            for document in completed:
                check_size(len(document))
            return [(event.token, document) for event, document in zip(events, completed, strict=True)]
        tokens = iter(event.token for event in events)
        results = await self._commands.evaluate(completed, self._stages.raw)
        return [(_token(tokens, events[0].token, result), result) for result in results]

    def _must_be_evaluated(self, events: Sequence[Event]) -> bool:
        if not self._stages.run_on_shards:
            return bool(self._stages.raw)
        # Catalog events come from the shards unfiltered.
        return bool(self._stages.raw) and any(operation_type(event.document) in CATALOG_EVENTS for event in events)

    async def _completed(self, events: Sequence[Event]) -> list[bytes]:
        if self._images is None:
            documents = [without_internal_fields(event.document) for event in events]
        else:
            documents = await look_up_each(events, self._images.added_to)
        return await self._keys.completed(events, documents)


def _token(tokens: Iterator[ResumeToken], first: ResumeToken, result: bytes) -> ResumeToken:
    """Return the token of the event that a result comes from; refuse a result with another ``_id``."""
    raw = token_of(result)
    for token in tokens:
        if token.raw == raw:
            return token
    left = find(result, b"_id")
    raise id_modified(first, b"" if left is None else result[left[1] : left[3]])


_AWAIT_MS: Final = 1000
"""Time that a ``getMore`` without ``maxTimeMS`` waits for events, as in mongod."""

_WAIT_SECONDS_MIN: Final = 0.02
"""Minimum wait of shards for events. It applies while events flow, as an event waits for the other shards' replies."""

_PATIENCE_SECONDS: Final = 0.1
"""Extra time for replies of shards after their own wait has ended. Later replies are for the next ``getMore``."""

_TAKEN_BYTES_MAX: Final = 16 * 1024 * 1024


class ChangeStreamStage(Stage):
    """The events of all shards in the order of their resume tokens.

    Args:
        start: the earliest start token among the shards.
        position: the resume token before the first event. Shards with an earlier start may return events before it,
            written while the stream was opened.
        must_be_found: the token of the event to resume after, which must come first; None if there is none.
        reads_at_once: whether the stream starts in the past, so that there may be events for the first batch.
    """

    awaits_data = True

    def __init__(
        self,
        streams: ShardStreams,
        owner: CatalogOwner,
        view: EventView,
        start: ResumeToken,
        position: ResumeToken,
        must_be_found: ResumeToken | None,
        *,
        reads_at_once: bool,
    ) -> None:
        self._streams = streams
        self._owner = owner
        self._view = view
        self._start = start
        self._position = position
        self._must_be_found = must_be_found
        self._reads_at_once = reads_at_once
        self._ready: deque[Shown] = deque()
        self._ready_bytes = 0
        self._is_invalidated = False
        self._has_ended = False
        self._last_event = trio.current_time()

    @property
    def remotes(self) -> Sequence[RemoteCursor]:
        """See `Stage`."""
        return self._streams.remotes

    @property
    def is_exhausted(self) -> bool:
        """Whether the stream has ended because its collection or database is gone.

        A batch that the last event has filled does not tell: the next one does, and is empty, as on a genuine router.
        """
        return self._has_ended

    @property
    def held_bytes(self) -> int:
        """See `Stage`."""
        return self._streams.merger.held_bytes + self._ready_bytes

    async def next_batch(self, get_more: GetMore) -> list[bytes]:
        """See `Stage`. Return once there is an event, or when the wait has expired; the first batch never waits."""
        batch = Batch(get_more.batch_size)
        if get_more.cursor_id:
            await self._await_events(get_more, batch)
        else:
            if self._reads_at_once and not batch.is_full:
                await self._streams.read(get_more, 1, self._position)
            await self._fill(get_more, batch)
        self.resume_token = self._position.raw
        self._has_ended = not (self._may_continue or batch.is_full)
        return batch.documents

    @property
    def _may_continue(self) -> bool:
        return bool(self._ready) or not self._is_invalidated

    async def _await_events(self, get_more: GetMore, batch: Batch) -> None:
        deadline = trio.current_time() + (get_more.max_time_ms or _AWAIT_MS) / 1000
        seconds_left = deadline - trio.current_time()
        await self._fill(get_more, batch)
        while not batch.documents and self._may_continue and seconds_left > 0:
            # Idle streams are polled less often.
            quiet_seconds = trio.current_time() - self._last_event
            wait_seconds = min(max(quiet_seconds / 2, _WAIT_SECONDS_MIN), seconds_left)
            with trio.move_on_at(deadline + _PATIENCE_SECONDS):
                await self._streams.read(get_more, math.ceil(wait_seconds * 1000), self._position)
            if self._streams.merger.has_events:
                self._last_event = trio.current_time()
            await self._fill(get_more, batch)
            seconds_left = deadline - trio.current_time()

    async def _fill(self, get_more: GetMore, batch: Batch) -> None:
        """Move returnable events into the batch, and advance the position of the stream accordingly."""
        while not batch.is_full:
            while self._ready and batch.add(self._ready[0][1]):
                token, document = self._ready.popleft()
                self._position = max(self._position, token)
                self._ready_bytes -= len(document)
            if self._ready or self._is_invalidated:
                return
            events = await self._take(get_more, batch.documents_missing)
            if not events:
                break
            self._ready.extend(await self._view.of(events))
            self._ready_bytes += sum(len(document) for _, document in self._ready)
            if not self._ready:
                self._position = max(self._position, events[-1].token)
        if not self._ready and self._streams.merger.next_event() is None:
            horizon = self._streams.merger.horizon
            if horizon > self._start:
                self._check_found()
            self._position = max(self._position, horizon)

    async def _take(self, get_more: GetMore, count_max: int | None) -> list[Event]:
        """Take the next returnable events, without duplicates of other shards' events."""
        merger = self._streams.merger
        events: list[Event] = []
        size = 0
        while (event := merger.next_event()) is not None and (not events or size < _TAKEN_BYTES_MAX):
            if count_max is not None and len(events) >= count_max:
                break
            kind = operation_type(event.document)
            is_repetition = await self._owner.is_repetition(event, kind)
            merger.take()
            if event.token <= self._start:
                is_found = self._start in (event.token, event.token.repeated())  # the first event's shard may be gone
                self._must_be_found = None if is_found else self._must_be_found
                continue
            self._check_found()
            if is_repetition:
                if kind == INVALIDATE:
                    await self._streams.reopen(get_more, event.source, event.token)
                continue
            events.append(event)
            size += len(event.document)
            if kind == INVALIDATE:
                self._is_invalidated = True
                break
        return events

    def _check_found(self) -> None:
        """Raise an error if the event to resume after should have come, and has not."""
        if self._must_be_found is not None:
            raise token_not_found(self._must_be_found)
