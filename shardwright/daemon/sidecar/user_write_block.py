"""Blocking the writes of users on the local mongod: its document and its two phases.

mongod itself enforces the document (``config.user_writes_critical_sections``), also after a restart. It refuses writes
to other databases than ``admin``, ``config`` and ``local`` unless they carry `BYPASS`. The daemons enforce the field
about new sharded DDL.

The change takes mongod's global lock (`GlobalLock`), as does an ``applyOps`` that creates or drops a collection or is
atomic. Such a change waits for all open transactions, and everything else waits for it. So it is aborted after a moment
and tried again later. It never waits without a limit, because the set may be the coordinator of a transaction's commit.
The coordinator's write would wait for the change, and the transaction would stay open until the write is done. Under a
continuous load of transactions, one is open at any moment. So an attempt first delays new ones until the others have
ended.
"""

from collections.abc import Awaitable, Callable, Mapping
from enum import StrEnum
from typing import Any, Final, Protocol

import trio

from shardwright.daemon.backoff import Backoff
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError, check_writes

_LOCK_MS: Final = 100
"""Maximum time for which one attempt may delay other operations."""

_LOCK_MS_MAX: Final = 5_000
"""Maximum delay by one attempt after `_PATIENCE_SECONDS`; it doubles each time until then."""

_PATIENCE_SECONDS: Final = 60.0
"""Period of short attempts: the default lifetime of a transaction."""

_TURN_SECONDS_MAX: Final = 0.5
"""Maximum wait of an attempt for open transactions before it requests the lock, and of new ones for an attempt."""

Attempt = Callable[[Mapping[str, int]], Awaitable[None]]


class GlobalLock:
    """Turns between a daemon's changes that need the global lock of its mongod, and clients' transactions."""

    def __init__(self) -> None:
        self._open: set[object] = set()
        self._attempts = 0
        self._changed = trio.lowlevel.ParkingLot()

    async def between_transactions(self, attempt: Attempt, *, lock_ms: int = _LOCK_MS) -> None:
        """Make a change when no transaction is open, without delaying others for long.

        Args:
            attempt: makes the change, unless it has been made; receives ``maxTimeMS``, to be added to the command.
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
        """Wait until a transaction may begin, for a short time only."""
        with trio.move_on_after(_TURN_SECONDS_MAX):
            while self.is_wanted:
                await self._changed.park()

    def begin(self, transaction: object) -> None:
        """Record that a transaction begins on this mongod."""
        self._open.add(transaction)

    def end(self, transaction: object) -> None:
        """Record that a transaction has apparently ended; may be repeated."""
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
"""The id of the document for all databases; MongoDB has no other."""

_DDL: Final = "blockNewUserShardedDDL"
_WRITES: Final = "blockUserWrites"
_MAJORITY: Final = {"w": "majority"}

_INDEX_BUILDS_LOCK_MS: Final = 1_000
"""Maximum delay by one attempt to abort index builds, which takes a while in itself."""


class Phase(StrEnum):
    """The two phases in which all servers of a cluster change together, with MongoDB's names."""

    PREPARE = "prepare"
    """Block new sharded DDL; when unblocking, allow writes that are not sharded DDL."""
    COMPLETE = "complete"
    """Block all writes; when unblocking, allow all."""


class Commands(Protocol):
    """A runner of commands on the primary mongod."""

    async def command(self, db: str, command: Mapping[str, Any]) -> dict[str, Any]:
        """Run a command and return its decoded reply."""


class UserWriteBlock:
    """The write block of one replica set. Every step may be repeated.

    All methods raise CommandError if mongod refuses, and BackendError if it does not answer.

    Args:
        lock: its global lock; None if its set coordinates no transactions.
    """

    def __init__(self, mongod: Commands, lock: GlobalLock | None = None) -> None:
        self._mongod = mongod
        self._lock = lock or GlobalLock()

    async def is_ddl_blocked(self) -> bool:
        """Whether users may begin no sharded DDL."""
        return await self._document() is not None

    async def phases(self) -> list[Phase]:
        """Return the phases that bring an unblocked set to this set's state."""
        document = await self._document()
        if document is None:
            return []
        return [Phase.PREPARE, Phase.COMPLETE] if document.get(_WRITES) else [Phase.PREPARE]

    async def enter(self, phase: Phase, *, block: bool) -> None:
        """Carry out a phase, on a majority of the members.

        Args:
            phase: the phase; the set has carried out the one before it.
            block: whether to block writes, or to allow them again.
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

        mongod aborts them only by its own command, which fails if the document also blocks sharded DDL. As long as
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
