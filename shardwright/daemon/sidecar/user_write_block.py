"""Blocking the writes of users on the local mongod: the document that says so, and its two phases.

mongod itself obeys the document (``config.user_writes_critical_sections``), also after a restart, and refuses writes
to other databases than ``admin``, ``config`` and ``local`` unless they carry `BYPASS`. What the document says of new
sharded DDL is for the daemons.

The change takes mongod's global lock (`GlobalLock`), as does an ``applyOps`` that creates or drops a collection or
is atomic. Such a change waits for all open transactions, and everything else waits for it. So it is aborted after a
moment and tried again later. It never waits without a limit: a write by which this set coordinates the commit of a
transaction may be among what waits for it, and that transaction stays open until then. Where transactions follow
each other all the time, one is open at any moment. So an attempt first delays those that are about to begin, until
the others have ended.
"""

from collections.abc import Awaitable, Callable, Mapping
from enum import StrEnum
from typing import Any, Final, Protocol

import trio

from shardwright.daemon.backoff import Backoff
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError, check_writes

_LOCK_MS: Final = 100
"""How long others may have to wait for one attempt."""

_LOCK_MS_MAX: Final = 5_000
"""How long they may have to wait for one attempt when there is no more patience; it doubles each time until then."""

_PATIENCE_SECONDS: Final = 60.0
"""How long to be content with short attempts, as long as a transaction may be open by default."""

_TURN_SECONDS_MAX: Final = 0.5
"""How long an attempt waits for open transactions before it asks for the lock, and new ones wait for an attempt."""

Attempt = Callable[[Mapping[str, int]], Awaitable[None]]


class GlobalLock:
    """The global lock of one mongod: its daemon's changes that need it, and clients' transactions take turns."""

    def __init__(self) -> None:
        self._open: set[object] = set()
        self._attempts = 0
        self._changed = trio.lowlevel.ParkingLot()

    async def between_transactions(self, attempt: Attempt, *, lock_ms: int = _LOCK_MS) -> None:
        """Make a change when no transaction is open, without making others wait long for that.

        Args:
            attempt: makes the change, unless it has been made; it is given ``maxTimeMS``, to be added to the command.
            lock_ms: the limit for the first attempts.

        Raises:
            CommandError: any error of the attempt but MaxTimeMSExpired.
        """
        patient_until = trio.current_time() + _PATIENCE_SECONDS
        backoff = Backoff(first_seconds=0.2, seconds_max=5.0)
        while True:
            try:
                await self._try_alone(attempt, lock_ms)
            except CommandError as error:
                if error.code != ErrorCode.MaxTimeMSExpired:
                    raise
            else:
                return
            await backoff.pause()
            if trio.current_time() >= patient_until:
                lock_ms = min(2 * lock_ms, _LOCK_MS_MAX)

    @property
    def is_wanted(self) -> bool:
        """Whether a change is being tried, so that new transactions should wait."""
        return self._attempts > 0

    async def wait_turn(self) -> None:
        """Return when a transaction may begin, which is soon in any case."""
        with trio.move_on_after(_TURN_SECONDS_MAX):
            while self.is_wanted:
                await self._changed.park()

    def begin(self, transaction: object) -> None:
        """Note that a transaction begins on this mongod."""
        self._open.add(transaction)

    def end(self, transaction: object) -> None:
        """Note that a transaction has ended, as far as is known; may be repeated."""
        self._open.discard(transaction)
        self._changed.unpark_all()

    async def _try_alone(self, attempt: Attempt, lock_ms: int) -> None:
        self._attempts += 1
        try:
            with trio.move_on_after(_TURN_SECONDS_MAX):
                while self._open:
                    await self._changed.park()
            await attempt({"maxTimeMS": lock_ms})
        finally:
            self._attempts -= 1
            self._changed.unpark_all()


BYPASS: Final = "mayBypassWriteBlocking"
"""The argument of all commands between servers that lets writes pass while users' writes are blocked."""

COLLECTION: Final = "user_writes_critical_sections"

_DB: Final = "config"
_GLOBAL: Final = ""
"""The document that is about all databases; MongoDB has no other."""

_DDL: Final = "blockNewUserShardedDDL"
_WRITES: Final = "blockUserWrites"
_MAJORITY: Final = {"w": "majority"}

_INDEX_BUILDS_LOCK_MS: Final = 1_000
"""How long others may have to wait for one attempt to abort index builds, which takes a while in itself."""


class Phase(StrEnum):
    """The two phases in which all servers of a cluster change together, with MongoDB's names."""

    PREPARE = "prepare"
    """Block new sharded DDL; or, to allow writes again, allow those that are not sharded DDL."""
    COMPLETE = "complete"
    """Block all writes; or allow all."""


class Commands(Protocol):
    """Runs commands on the primary mongod."""

    async def command(self, db: str, command: Mapping[str, Any]) -> dict[str, Any]:
        """Run a command and return its decoded reply."""


class UserWriteBlock:
    """What is blocked on one replica set. Every step may be repeated.

    All methods raise CommandError if mongod refuses, and BackendError if it does not answer.

    Args:
        mongod: the mongod, which is primary.
        lock: its global lock; None if its set coordinates no transactions.
    """

    def __init__(self, mongod: Commands, lock: GlobalLock | None = None) -> None:
        self._mongod = mongod
        self._lock = lock or GlobalLock()

    async def is_ddl_blocked(self) -> bool:
        """Whether users may begin no sharded DDL."""
        return await self._document() is not None

    async def phases(self) -> list[Phase]:
        """The phases by which a set that blocks nothing comes to block what this one does."""
        document = await self._document()
        if document is None:
            return []
        return [Phase.PREPARE, Phase.COMPLETE] if document.get(_WRITES) else [Phase.PREPARE]

    async def enter(self, phase: Phase, *, block: bool) -> None:
        """Carry out a phase, on a majority of the members.

        Args:
            phase: the phase; the set has carried out the one before it.
            block: whether writes are to be blocked, or allowed again.
        """
        if phase is Phase.PREPARE:
            await (self._block_ddl() if block else self._set({_WRITES: False}))
        elif block:
            await self._block_writes()
        else:
            delete = {"q": {"_id": _GLOBAL}, "limit": 1}
            await self._write({"delete": COLLECTION, "deletes": [delete]})

    async def _block_ddl(self) -> None:
        await self._set({_DDL: True}, upsert=True)

    async def _block_writes(self) -> None:
        """Block all writes, and abort the users' index builds in progress.

        mongod aborts them only by its own command, which accepts no document that blocks sharded DDL too. As long as
        there is a document, `is_ddl_blocked`.
        """
        document = await self._document()
        if document is not None and document.get(_DDL) and document.get(_WRITES):
            return
        await self._set({_DDL: False, _WRITES: True}, upsert=True)
        await self._lock.between_transactions(self._abort_index_builds, lock_ms=_INDEX_BUILDS_LOCK_MS)
        await self._set({_DDL: True})

    async def _abort_index_builds(self, max_time: Mapping[str, int]) -> None:
        await self._mongod.command("admin", {"setUserWriteBlockMode": 1, "global": True, **max_time})

    async def _document(self) -> dict[str, Any] | None:
        find = {"find": COLLECTION, "filter": {"_id": _GLOBAL}, "singleBatch": True}
        reply = await self._mongod.command(_DB, find)
        found: list[dict[str, Any]] = reply["cursor"]["firstBatch"]
        return found[0] if found else None

    async def _set(self, values: Mapping[str, bool], *, upsert: bool = False) -> None:
        defaults = {name: False for name in (_DDL, _WRITES) if name not in values}
        change = {"$set": values, **({"$setOnInsert": defaults} if defaults else {})}
        await self._write({"update": COLLECTION, "updates": [{"q": {"_id": _GLOBAL}, "u": change, "upsert": upsert}]})

    async def _write(self, command: Mapping[str, Any]) -> None:
        reply = await self._mongod.command(_DB, {**command, "writeConcern": _MAJORITY})
        check_writes(reply)
