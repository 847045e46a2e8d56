"""Following the changes of the source through a change stream, and applying them in batches."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from bson import encode
from bson.timestamp import Timestamp
from pymongo.errors import PyMongoError

from shardwright.sync.batches import PARTS_SECONDS, Batch, Item, Limits, Moment, Moments, cut, folded
from shardwright.sync.changes import Change, Mark, parse, token_time
from shardwright.sync.checkpoint import NO_TIME
from shardwright.sync.copying import Copier
from shardwright.sync.ddl import Catalog
from shardwright.sync.ends import End, check_cancellation, is_transient, pauses
from shardwright.sync.replication import Filter
from shardwright.sync.store import SYNC, Store
from shardwright.sync.writing import Writer
from shardwright.wire.logger import get_logger

AWAIT_MS: Final = 50
BATCH_EVENTS: Final = 1000

_log = get_logger("sync.following")


class Follower:
    """Reads a change stream into a bounded buffer, and applies its contents.

    Attributes:
        allowed: set unless the replication is paused; changes are applied only while it is set.
        applied: the cluster time of the newest applied change of the source; all earlier ones are applied too.
        moments: the states of the source that the target has equalled.
        token: the resume token after them.
        is_sharded: whether the source has several shards, whose events of one time arrive one after the other.
    """

    def __init__(
        self,
        source: End,
        store: Store,
        writer: Writer,
        catalog: Catalog,
        copier: Copier,
        chosen: Filter,
        *,
        is_sharded: bool,
        limits: Limits = Limits(),  # noqa: B008 - it is frozen
    ) -> None:
        self.applied = NO_TIME
        self.token: bytes | None = None
        self.events = 0
        self.allowed = asyncio.Event()
        self.allowed.set()
        self._source, self._store, self._writer = source, store, writer
        self._catalog, self._copier, self._filter = catalog, copier, chosen
        self.moments = Moments(PARTS_SECONDS if is_sharded else 0)
        self.is_sharded = is_sharded
        self._limits = limits
        self._buffer: list[Item] = []
        self._buffered = 0
        self._changed = asyncio.Condition()
        self._last: Mapping[str, Any] | None = None
        self._last_change = NO_TIME

    @property
    def consistent(self) -> Moment | None:
        """The latest certain source time whose state the target has equalled, with the target's time then."""
        return self.moments.newest

    async def read(self, start: dict[str, Any]) -> None:
        """Read the stream for ever, and resume it after errors.

        Args:
            start: ``start_at_operation_time`` or ``resume_after``.

        Raises:
            PyMongoError: the error is permanent, or there were too many without progress.
        """
        if "resume_after" in start:
            self._last_change = token_time(encode(start["resume_after"]))
        place, waits = start, pauses()
        while True:
            try:
                await self._read(place)
            except PyMongoError as error:
                if self._last is not None and place != {"resume_after": self._last}:
                    place, waits = {"resume_after": self._last}, pauses()
                seconds = next(waits, None)
                if seconds is None or not is_transient(error):
                    raise
                _log.warning("The change stream is opened again", error=str(error), seconds=seconds)
                await asyncio.sleep(seconds)

    async def _read(self, start: dict[str, Any]) -> None:
        stream = await self._source.client.watch(
            show_expanded_events=True, max_await_time_ms=AWAIT_MS, batch_size=BATCH_EVENTS, **start
        )
        async with stream:
            while True:
                event: Any = await stream.try_next()
                if event is not None:
                    await self._put(parse(bytes(event.raw)), len(event.raw))
                    self._last = stream.resume_token
                elif stream.resume_token is not None:
                    token = encode(stream.resume_token)
                    await self._put(Mark(token_time(token), token), 0)
                    self._last = stream.resume_token
                check_cancellation()

    async def apply(self) -> None:
        """Apply the buffer's contents for ever."""
        while True:
            async with self._changed:
                batch = None
                while batch is None:
                    batch = cut(
                        self._buffer,
                        self._limits,
                        closes_at_once=not self.is_sharded,
                        last_change=self._last_change,
                    )
                    if batch is None:
                        await self._changed.wait()
                if batch.changes:
                    self._last_change = batch.changes[-1].time
                self._buffered -= sum(change.size for change in batch.changes)
                del self._buffer[: batch.items]
                self._changed.notify_all()
            await self.allowed.wait()
            await self._apply(batch)
            check_cancellation()

    async def wait_applied(self, time: Timestamp) -> None:
        """Wait until all changes up to a cluster time of the source are applied."""
        async with self._copier.progressed:
            await self._copier.progressed.wait_for(lambda: self.applied >= time)

    async def wait_consistent(self, at_least: Timestamp = NO_TIME) -> tuple[Timestamp, Timestamp]:
        """Wait for a state of the source that the target has equalled, not before a time; see `consistent`."""

        async with self._copier.progressed:
            while self.consistent is None or self.consistent[0] < at_least:
                await self._copier.progressed.wait()
        return self.consistent

    def note_idle(self, time: Timestamp | None) -> None:
        """Record that the target still equals the same state of the source at a later time of the target.

        The caller has held the lock of the writer since before that time.
        """
        if time is not None and self._writer.read_until <= self.applied:
            self.moments.note_idle(self.applied, time)

    async def note_written_since(self, token: Mapping[str, Any]) -> None:
        """Note the documents of the already applied changes after a resume token, unless there are too many.

        Raises:
            OperationFailure: the source no longer has these changes.
        """
        until, touched = self.applied, self._writer.touched
        stream = await self._source.client.watch(
            show_expanded_events=True, max_await_time_ms=AWAIT_MS, batch_size=BATCH_EVENTS, resume_after=token
        )
        async with stream:
            while not touched.is_full:
                event: Any = await stream.try_next()
                if event is not None:
                    change = parse(bytes(event.raw))
                    if change.time > until:
                        return
                    placed = self._placed(change, adopts=False) if change.is_of_document else None
                    if placed is not None:
                        touched.note(placed.namespace, [placed.id])
                elif stream.resume_token is not None and token_time(encode(stream.resume_token)) >= until:
                    return

    async def _put(self, item: Item, size: int) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: not self._is_full)
            last = self._buffer[-1] if self._buffer else None
            if isinstance(item, Mark) and isinstance(last, Mark):
                self._buffer.pop()
            self._buffer.append(item)
            self._buffered += size
            if isinstance(item, Mark) or last is None or last.time < item.time or self._is_full:
                self._changed.notify_all()

    @property
    def _is_full(self) -> bool:
        return self._buffered > self._limits.buffer_bytes

    async def _apply(self, batch: Batch) -> None:
        position: dict[str, Any] = {"token": batch.token, "applied": batch.time}
        self.moments.applied(batch.changes)
        if batch.changes and not batch.changes[0].is_of_document:
            await self._catalog.apply(batch.changes[0], self._copier)
            fields, removed = self._catalog.changed()
            await self._store.fenced(SYNC, {"_id": self._store.id}, position | fields, removes=removed)
        elif documents := [each for change in batch.changes if (each := self._placed(change)) is not None]:
            async with self._writer.lock:
                await self._writer.apply(folded(documents), position)
            if self._catalog.has_adopted:
                fields, removed = self._catalog.changed()
                await self._store.fenced(SYNC, {"_id": self._store.id}, fields, removes=removed)
        self.events += len(batch.changes)
        self.applied, self.token = batch.time, batch.token
        if batch.is_whole and self._writer.read_until <= batch.time and self._copier.is_done:
            if self._store.written is None:
                await self._store.fenced(SYNC, {"_id": self._store.id}, position)
            if self._store.written is not None:
                self.moments.equalled(batch.time, self._store.written)
        self.moments.reached(batch.time)
        await self._copier.note_applied(batch.time)

    def _placed(self, change: Change, *, adopts: bool = True) -> Change | None:
        """Return a change with its collection's namespace at the target; None if it is not replicated.

        Args:
            adopts: whether an unknown UUID is adopted. An event that was applied before may have an earlier one.
        """
        if change.uuid is None:
            return change if self._filter.has(change.namespace) else None
        known = self._catalog.namespaces.get(change.uuid)
        if known is None:
            if not self._filter.has(change.namespace) or (adopts and not self._catalog.adopt(change)):
                return None
            known = change.namespace
        return change if known == change.namespace else replace(change, namespace=known)
