"""Documents in ``config.locks`` for a primary's changes, and in ``config.lockpings`` for its liveness.

The documents are written alongside the changes. All lock changes since the last write are written at once, and a
finished change waits for that only briefly.

In MongoDB 6.0 these are the cluster's distributed locks, a document for each name that was ever locked. Here they only
inform people and tools; mutual exclusion is implemented elsewhere.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

import trio
from bson.objectid import ObjectId

from shardwright.daemon.backoff import Backoff, until_done
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.logger import get_logger

LOCKS: Final = "locks"
PINGS: Final = "lockpings"

_FREE: Final = 0
_HELD: Final = 2

_NO_TERM: Final = -1
"""MongoDB 6.0 no longer gives locks a term."""


@dataclass(frozen=True, slots=True)
class LockEntry:
    """A lock of a process, held or released.

    Attributes:
        process: a shard's id, or ``config``.
        session: the term in which the process holds it (see `lock_session`).
        when: the time at which it was taken, in UTC without a time zone.
        who: the process and its thread.
    """

    name: str
    process: str
    session: ObjectId
    when: datetime
    who: str
    why: str

    def to_update(self, *, is_held: bool) -> dict[str, Any]:
        """Return the update statement that records the lock; one that another process has taken since stays."""
        fields = {
            "state": _HELD if is_held else _FREE,
            "process": self.process,
            "term": _NO_TERM,
            "ts": self.session,
            "when": self.when,
            "who": self.who,
            "why": self.why,
        }
        if is_held:
            return {"q": {"_id": self.name}, "u": {"$set": fields}, "upsert": True}
        is_taken = {"$and": [{"$eq": ["$state", _HELD]}, {"$ne": ["$process", self.process]}]}
        released = {"$literal": {"_id": self.name, **fields}}
        return {
            "q": {"_id": self.name},
            "u": [{"$replaceWith": {"$cond": [is_taken, "$$ROOT", released]}}],
            "upsert": True,
        }


def lock_session(term: int) -> ObjectId:
    """Return the value of ``ts`` for all locks that a process holds in one term."""
    return ObjectId(term.to_bytes(8, "little") + bytes(4))


def release_all(process: str) -> Mapping[str, Any]:
    """Return the update statement that releases the locks of an earlier primary of the process."""
    return {"q": {"process": process, "state": _HELD}, "u": {"$set": {"state": _FREE}}, "multi": True}


def ping(process: str, now: datetime) -> Mapping[str, Any]:
    """Return the update statement that records that a process is alive."""
    return {"q": {"_id": process}, "u": {"$set": {"ping": now}}, "upsert": True}


logger = get_logger("daemon.shown_locks")

PING_SECONDS: Final = 30.0
RELEASE_SECONDS_MAX: Final = 1.0
"""Maximum wait of a finished change until its locks are shown as released."""

Write = Callable[[str, Sequence[Mapping[str, Any]]], Awaitable[object]]
"""Runs the statements of an update of a collection of the config database on the config servers."""


class ShownLocks:
    """The locks of one process."""

    def __init__(self, write: Write) -> None:
        self._write = write
        self._process = ""
        self._term = 0
        self._is_running = False
        self._unwritten: dict[str, Mapping[str, Any]] = {}
        self._holders: dict[str, int] = {}
        self._wake = trio.Event()
        self._written = trio.Event()

    def begin(self, process: str, term: int) -> None:
        """Begin a term, for which `run` is called next.

        Args:
            process: the shard's id, or ``config``.
            term: the term in which the process is primary.
        """
        self._process, self._term = process, term
        self._unwritten.clear()
        self._wake = trio.Event()  # the last term may have ended before its changes were written

    async def run(self) -> None:
        """Write until cancelled."""
        self._is_running = True
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._keep_pinging)
                await self._until_written(LOCKS, [release_all(self._process)])
                while True:
                    await self._write_changes()
        finally:
            self._is_running = False

    @asynccontextmanager
    async def shown(self, names: Iterable[str], who: str, why: str) -> AsyncIterator[None]:
        """Show locks as held during the block. A lock of several blocks is held until the last one ends.

        Args:
            who: the thread, as MongoDB names it.
        """
        entries = [self._entry(name, who, why) for name in names]
        for entry in entries:
            self._holders[entry.name] = self._holders.get(entry.name, 0) + 1
            self._change(entry, is_held=True)
        try:
            yield
        finally:
            for entry in reversed(entries):
                self._release(entry)
            if self._is_running:
                written = self._written
                with trio.move_on_after(RELEASE_SECONDS_MAX):
                    await written.wait()

    def _entry(self, name: str, who: str, why: str) -> LockEntry:
        return LockEntry(name, self._process, lock_session(self._term), _now(), f"{self._process}:{who}", why)

    def _release(self, entry: LockEntry) -> None:
        self._holders[entry.name] -= 1
        if not self._holders[entry.name]:
            del self._holders[entry.name]
            self._change(entry, is_held=False)

    def _change(self, entry: LockEntry, *, is_held: bool) -> None:
        self._unwritten[entry.name] = entry.to_update(is_held=is_held)
        self._wake.set()

    async def _write_changes(self) -> None:
        await self._wake.wait()
        self._wake, written, self._written = trio.Event(), self._written, trio.Event()
        changes, self._unwritten = list(self._unwritten.values()), {}
        await self._until_written(LOCKS, changes)
        written.set()

    async def _keep_pinging(self) -> None:
        while True:
            await self._until_written(PINGS, [ping(self._process, _now())])
            await trio.sleep(PING_SECONDS)

    async def _until_written(self, collection: str, statements: Sequence[Mapping[str, Any]]) -> None:
        backoff = Backoff(first_seconds=1.0, seconds_max=PING_SECONDS)
        await until_done(partial(self._write, collection, statements), backoff, _log_failure)


def _now() -> datetime:
    now = datetime.now(UTC).replace(tzinfo=None)
    return now.replace(microsecond=now.microsecond // 1000 * 1000)


def _log_failure(error: BackendError | CommandError, retry_seconds: float) -> None:
    logger.warning("Could not show locks", error=str(error), retry_seconds=round(retry_seconds, 3))
