"""All cursors that clients have open on this router process.

A cursor is *checked out* (MongoDB: pinned) while a ``getMore`` reads it, and refuses other readers during that time. It
ends when it is exhausted, fails, is killed, or has been idle for too long, or when its transaction ends. A cursor of a
session instead times out with the session. An idle cursor also ends if other replies need its memory
(`wire.transport.reply_memory`). When a cursor ends, its remaining cursors on shards are killed in the background.
"""

from collections.abc import Callable, Collection, Container, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from random import SystemRandom
from typing import TYPE_CHECKING, Final

import trio

from shardwright.router.cursors.open_cursor import Cursor, CursorOwner, OpenCursor, new_cursor_id
from shardwright.router.exec.remote import RemoteCursor, RemoteKiller
from shardwright.router.exec.stage import Stage
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import MISSING_FIELD, UNKNOWN_FIELD, VALUE_TOO_SMALL, CommandError
from shardwright.wire.logger import get_logger
from shardwright.wire.rawbson import EMPTY_DOCUMENT
from shardwright.wire.transport.reply_memory import Holdings

if TYPE_CHECKING:
    from shardwright.wire.transport.client_connection import ClientConnection


@dataclass(frozen=True, slots=True)
class CursorStatistics:
    """Cursors open now, and those opened and timed out since the router started."""

    open_total: int
    open_pinned: int
    open_no_timeout: int
    open_single_shard: int
    open_multiple_shards: int
    open_of_closed_connections: int
    opened: int
    timed_out: int

    @classmethod
    def of(cls, cursors: Collection[OpenCursor], *, opened: int, timed_out: int) -> "CursorStatistics":
        """Count the open cursors."""
        multiple = sum(len(each.cursor.root.remotes) > 1 for each in cursors)
        return cls(
            open_total=len(cursors),
            open_pinned=sum(each.is_checked_out for each in cursors),
            open_no_timeout=sum(each.is_immortal for each in cursors),
            open_single_shard=len(cursors) - multiple,
            open_multiple_shards=multiple,
            open_of_closed_connections=sum(
                each.client is not None and each.client.stream.is_closed for each in cursors
            ),
            opened=opened,
            timed_out=timed_out,
        )


logger = get_logger("router.cursors")

ARGUMENT_ERRORS: Final = frozenset(
    {
        ErrorCode.BadValue,
        ErrorCode.FailedToParse,
        ErrorCode.TypeMismatch,
        MISSING_FIELD,
        UNKNOWN_FIELD,
        VALUE_TOO_SMALL,
    }
)
"""Errors about the arguments of a ``getMore``. They leave the cursor unchanged."""

IDLE_MILLISECONDS_MAX: Final = 600_000
"""Default of the parameter ``cursorTimeoutMillis``."""

_REAP_SECONDS: Final = 4.0
"""MongoDB's default of ``clientCursorMonitorFrequencySecs``."""

_ENDED_KEPT_MAX: Final = 1_000
"""Cursors of ended transactions whose owners are remembered for the error of a later ``getMore``."""

_random_bits: Final = SystemRandom().getrandbits


class CursorManager:
    """The open cursors by id. `run` must be running while the manager is used."""

    def __init__(
        self,
        holdings: Holdings,
        *,
        worker_index: int = 0,
        idle_milliseconds_max: Callable[[], float] = lambda: IDLE_MILLISECONDS_MAX,
        sessions_time_out: Callable[[], bool] = lambda: False,
        random_bits: Callable[[int], int] = _random_bits,
    ) -> None:
        """Start without cursors.

        Args:
            holdings: counts the batches that cursors hold between two requests.
            worker_index: the index of this process, which is part of the ids.
            idle_milliseconds_max: returns the current idle timeout.
            sessions_time_out: returns whether the timeout applies to cursors of sessions, too.
        """
        self._holdings = holdings
        self._worker_index = worker_index
        self._idle_milliseconds_max = idle_milliseconds_max
        self._sessions_time_out = sessions_time_out
        self._random_bits = random_bits
        self._cursors: dict[int, OpenCursor] = {}
        self._in_transactions: dict[CursorOwner, set[int]] = {}
        self._ended_with_transactions: dict[int, CursorOwner] = {}
        self._killer = RemoteKiller()
        self._opened = 0
        self._timed_out = 0

    async def run(self) -> None:
        """End idle cursors, and kill remaining cursors on shards, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._reap_repeatedly)
            nursery.start_soon(self._killer.run)

    def open(
        self,
        cursor: Cursor,
        owner: CursorOwner,
        *,
        session_key: bytes | None = None,
        command: bytes = EMPTY_DOCUMENT,
        is_immortal: bool = False,
        client: "ClientConnection | None" = None,
    ) -> int:
        """Register a cursor that is not exhausted; return its id.

        Args:
            session_key: the session that the cursor ends with (`SessionId.key`), if that is not its owner's.
            command: the raw command that opens it, for ``$currentOp``.
            is_immortal: whether the idle timeout does not apply.
        """
        while (cursor_id := new_cursor_id(self._worker_index, self._random_bits)) in self._cursors:
            pass
        entry = self._cursors[cursor_id] = OpenCursor(
            cursor_id,
            cursor,
            owner,
            client,
            session_key=owner.session_key if session_key is None else session_key,
            command=command,
            is_immortal=is_immortal,
            end_for_room=self._end_for_room,
        )
        self._holdings.keep(entry, cursor.root.held_bytes, client)
        if owner.transaction is not None:
            self._in_transactions.setdefault(owner, set()).add(cursor_id)
        self._opened += 1
        return cursor_id

    @contextmanager
    def checked_out(
        self, cursor_id: int, namespace: str, reader: CursorOwner, client: "ClientConnection | None" = None
    ) -> Iterator[OpenCursor]:
        """Check a cursor out for a ``getMore``.

        An error in the block ends the cursor, unless the error is about arguments. A kill during the block cancels it
        and raises CursorKilled.

        Raises:
            CommandError: CursorNotFound; CursorInUse; Unauthorized, the namespace differs; 50799 to 50804, the session
                or the transaction differs; CursorKilled.
        """
        entry = self._cursors.get(cursor_id)
        if entry is None:
            owner = self._ended_with_transactions.get(cursor_id)
            if owner is not None:
                owner.check(cursor_id, reader)
            raise CommandError(ErrorCode.CursorNotFound, f"cursor id {cursor_id} not found")
        if entry.is_in_passage and entry.client is client:  # this is the same ``getMore``
            entry.is_in_passage = entry.is_checked_out = False
        entry.check_readable(namespace, reader)
        entry.is_checked_out = True
        entry.client = client
        entry.scope = trio.CancelScope()
        if entry.is_killed:
            entry.scope.cancel()
        self._holdings.resume(entry, client)
        is_usable = False
        try:
            with entry.scope:
                yield entry
            is_usable = not entry.is_killed
            entry.batches += 1
            if entry.scope.cancelled_caught:
                raise CommandError(ErrorCode.CursorKilled, f"operation was interrupted: cursor {cursor_id} was killed")
        except CommandError as error:
            is_usable = error.code in ARGUMENT_ERRORS and not entry.is_killed
            if error.code == ErrorCode.CursorNotFound:  # the shard's text has the id of the shard's cursor
                error.message = f"cursor id {cursor_id} not found"
            raise
        finally:
            entry.is_checked_out = False
            entry.last_used = trio.current_time()
            if not is_usable or entry.cursor.root.is_exhausted:
                self._end(entry)
            else:
                self._holdings.keep(entry, entry.cursor.root.held_bytes, client)

    def begin_in_passage(self, entry: OpenCursor, client: "ClientConnection") -> None:
        """Check out a readable cursor that holds no documents, for a ``getMore`` that a passage begins.

        The passage ends it with `end_in_passage`, or `checked_out` continues it for the same client.
        """
        entry.is_checked_out = entry.is_in_passage = True
        entry.client = client

    def end_in_passage(self, entry: OpenCursor, *, is_usable: bool = True) -> None:
        """Return a cursor after a batch; end it if it is exhausted or unusable."""
        entry.is_checked_out = entry.is_in_passage = False
        entry.batches += 1
        entry.last_used = trio.current_time()
        if not is_usable or entry.cursor.root.is_exhausted:
            self._end(entry)

    def kill(self, cursor_id: int, db: str | None = None) -> bool:
        """End a cursor, interrupting its reader.

        Args:
            db: kill it only if it is on this database; None for any.

        Returns:
            Whether there was such a cursor.
        """
        entry = self._cursors.get(cursor_id)
        if entry is None or (db is not None and entry.cursor.namespace.partition(".")[0] != db):
            return False
        if entry.is_checked_out:
            if entry.is_killed:
                return False
            entry.is_killed = True
            entry.scope.cancel()
            if entry.is_in_passage and entry.client is not None and entry.client.loop is not None:
                entry.client.loop.leave_reactor()
        else:
            self._end(entry)
        return True

    def sessions(self) -> set[bytes]:
        """Return the sessions that have cursors (`SessionId.key`)."""
        return {key for entry in self._cursors.values() if (key := entry.session_key) is not None}

    def kill_sessions(self, sessions: Container[bytes]) -> int:
        """End all cursors of some sessions (`SessionId.key`); return how many there were."""
        keys = ((entry.id, entry.session_key) for entry in self._cursors.values())
        found = [cursor_id for cursor_id, key in keys if key is not None and key in sessions]
        return sum(self.kill(cursor_id) for cursor_id in found)

    @property
    def has_any_in_transactions(self) -> bool:
        """Whether any transaction has cursors, which is rare."""
        return bool(self._in_transactions)

    def end_transaction(self, owner: CursorOwner) -> None:
        """End the cursors of a transaction that has ended, because they can no longer be read.

        A ``getMore`` outside the transaction still receives the error about the transaction, as from a mongos.
        """
        for cursor_id in tuple(self._in_transactions.get(owner, ())):
            self.kill(cursor_id)
            self._ended_with_transactions[cursor_id] = owner
        while len(self._ended_with_transactions) > _ENDED_KEPT_MAX:
            del self._ended_with_transactions[next(iter(self._ended_with_transactions))]

    def kill_all(self) -> int:
        """End all cursors; return how many there were."""
        return sum(self.kill(cursor_id) for cursor_id in list(self._cursors))

    def kill_remotes(self, remotes: Iterable[RemoteCursor]) -> None:
        """Kill cursors on shards that no cursor of the router needs any longer, in the background."""
        self._killer.kill(remotes)

    def close(self, stage: Stage) -> None:
        """Kill the cursors on shards of a stage that is not read any further, in the background."""
        self._killer.kill(stage.remotes)

    @contextmanager
    def closing_on_error(self, stage: Stage) -> Iterator[None]:
        """Close a stage if the block fails or is cancelled."""
        try:
            yield
        except BaseException:
            self.close(stage)
            raise

    def reap(self, now: float) -> int:
        """End the cursors that have been idle for too long; return how many.

        Args:
            now: on trio's clock.
        """
        limit = now - self._idle_milliseconds_max() / 1000
        all_time_out = self._sessions_time_out()
        cursors = self._cursors.values()
        expired = [entry for entry in cursors if entry.is_expired(limit, sessions_time_out=all_time_out)]
        for entry in expired:
            logger.info("A cursor timed out", cursor_id=entry.id, namespace=entry.cursor.namespace)
            self._end(entry)
        self._timed_out += len(expired)
        return len(expired)

    def _end_for_room(self, entry: OpenCursor) -> None:
        """End an idle cursor to free its memory."""
        logger.info(
            "Killed an idle cursor to free memory for other replies",
            cursor_id=entry.id,
            namespace=entry.cursor.namespace,
        )
        self._end(entry)

    @property
    def open_cursors(self) -> Collection[OpenCursor]:
        """All open cursors."""
        return self._cursors.values()

    def find(self, cursor_id: int) -> OpenCursor | None:
        """Return a cursor by its id."""
        return self._cursors.get(cursor_id)

    def statistics(self) -> CursorStatistics:
        """Return the current numbers."""
        return CursorStatistics.of(self._cursors.values(), opened=self._opened, timed_out=self._timed_out)

    def _end(self, entry: OpenCursor) -> None:
        self._cursors.pop(entry.id, None)
        self._holdings.drop(entry)
        others = self._in_transactions.get(entry.owner)
        if others is not None:
            others.discard(entry.id)
            if not others:
                del self._in_transactions[entry.owner]
        self.close(entry.cursor.root)

    async def _reap_repeatedly(self) -> None:
        while True:
            await trio.sleep(_REAP_SECONDS)
            self.reap(trio.current_time())
