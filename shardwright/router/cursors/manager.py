"""All cursors that clients have open on this router process.

A cursor is *checked out* (MongoDB: pinned) while a ``getMore`` reads it, and nobody else can read it then. It ends when
it is exhausted, fails, is killed, or has been idle for too long, or sooner if others need its memory
(`wire.transport.holdings`). The cursors on shards that remain when a cursor ends are killed in the background, since
nobody waits for that.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from random import SystemRandom
from typing import TYPE_CHECKING, Final

import trio

from shardwright.router.cursors.cursor import Cursor
from shardwright.router.cursors.get_more import ARGUMENT_ERRORS
from shardwright.router.cursors.ids import new_cursor_id
from shardwright.router.cursors.remote import RemoteCursor
from shardwright.router.cursors.session import CursorOwner
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.logger import get_logger
from shardwright.wire.transport.holdings import Holding
from shardwright.wire.transport.unread import UNREAD_REPLIES

if TYPE_CHECKING:
    from shardwright.wire.transport.client_connection import ClientConnection

logger = get_logger("router.cursors")

IDLE_MILLISECONDS_MAX: Final = 600_000
"""Default of the parameter ``cursorTimeoutMillis``."""

_REAP_SECONDS: Final = 4.0
"""As ``clientCursorMonitorFrequencySecs``."""

_KILL_SECONDS_MAX: Final = 10.0

_random_bits: Final = SystemRandom().getrandbits


@dataclass(frozen=True, slots=True)
class CursorStatistics:
    """The numbers in ``serverStatus`` (``metrics.cursor``) and the metrics: cursors open now, and timed out so far."""

    open_total: int
    open_pinned: int
    open_no_timeout: int
    open_single_shard: int
    open_multiple_shards: int
    open_of_closed_connections: int
    opened: int
    timed_out: int


class OpenCursor(Holding):
    """A cursor in the manager; the documents it holds use memory between two requests.

    Attributes:
        id: the client's id for it.
        cursor: what reads the results.
        owner: the session and transaction that opened it.
        client: the connection that last read it, if known.
        is_immortal: it has no idle timeout.
        is_checked_out: a ``getMore`` is reading it.
        is_killed: it was killed while it was checked out.
        last_used: on trio's clock.
        scope: cancelled to interrupt the ``getMore`` that is reading it.
    """

    __slots__ = (
        "_manager",
        "client",
        "cursor",
        "id",
        "is_checked_out",
        "is_immortal",
        "is_killed",
        "last_used",
        "owner",
        "scope",
    )

    def __init__(
        self,
        cursor_id: int,
        cursor: Cursor,
        owner: CursorOwner,
        manager: "CursorManager",
        *,
        is_immortal: bool,
    ) -> None:
        super().__init__()
        self._manager = manager
        self.id = cursor_id
        self.cursor = cursor
        self.owner = owner
        self.client: ClientConnection | None = None
        self.is_immortal = is_immortal
        self.is_checked_out = False
        self.is_killed = False
        self.last_used = trio.current_time()
        self.scope = trio.CancelScope()

    def end(self) -> None:
        """See `Holding`; later reads fail with CursorNotFound."""
        self._manager.end_for_room(self)


class CursorManager:
    """The open cursors by id. `run` must be running while it is used."""

    def __init__(
        self,
        *,
        worker_index: int = 0,
        idle_milliseconds_max: Callable[[], float] = lambda: IDLE_MILLISECONDS_MAX,
        random_bits: Callable[[int], int] = _random_bits,
    ) -> None:
        """Start without cursors.

        Args:
            worker_index: which worker process this is; it is part of the ids.
            idle_milliseconds_max: returns the present idle timeout.
            random_bits: returns that many random bits.
        """
        self._worker_index = worker_index
        self._idle_milliseconds_max = idle_milliseconds_max
        self._random_bits = random_bits
        self._cursors: dict[int, OpenCursor] = {}
        self._to_kill, self._killing = trio.open_memory_channel[RemoteCursor](float("inf"))
        self._opened = 0
        self._timed_out = 0

    async def run(self) -> None:
        """End idle cursors, and kill those left on shards, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._reap_repeatedly)
            async for remote in self._killing:
                nursery.start_soon(self._kill_remote, remote)

    def open(
        self,
        cursor: Cursor,
        owner: CursorOwner,
        *,
        is_immortal: bool = False,
        client: "ClientConnection | None" = None,
    ) -> int:
        """Keep a cursor that is not exhausted; returns its id."""
        while (cursor_id := new_cursor_id(self._worker_index, self._random_bits)) in self._cursors:
            pass
        entry = self._cursors[cursor_id] = OpenCursor(cursor_id, cursor, owner, self, is_immortal=is_immortal)
        entry.client = client
        UNREAD_REPLIES.holdings.keep(entry, cursor.held_bytes, client)
        self._opened += 1
        return cursor_id

    @contextmanager
    def checked_out(
        self, cursor_id: int, namespace: str, reader: CursorOwner, client: "ClientConnection | None" = None
    ) -> Iterator[OpenCursor]:
        """Check a cursor out for a ``getMore``.

        An error in the block ends the cursor, unless it is about arguments. A kill in the meantime cancels the block
        and becomes CursorKilled.

        Raises:
            CommandError: CursorNotFound; CursorInUse; Unauthorized, it is on another namespace; 50799 to 50804, it
                belongs to another session or transaction; CursorKilled.
        """
        entry = self._cursors.get(cursor_id)
        if entry is None:
            raise CommandError(ErrorCode.CursorNotFound, f"cursor id {cursor_id} not found")
        if entry.is_checked_out:
            raise CommandError(ErrorCode.CursorInUse, f"cursor id {cursor_id} is already in use")
        if entry.cursor.namespace != namespace:
            raise CommandError(
                ErrorCode.Unauthorized,
                f"Requested getMore on namespace '{namespace}', but cursor belongs to a different namespace "
                f"{entry.cursor.namespace}",
            )
        entry.owner.check(cursor_id, reader)
        entry.is_checked_out = True
        entry.client = client
        entry.scope = trio.CancelScope()
        UNREAD_REPLIES.holdings.resume(entry, client)
        is_usable = False
        try:
            with entry.scope:
                yield entry
            is_usable = not entry.is_killed
            if entry.scope.cancelled_caught:
                raise CommandError(ErrorCode.CursorKilled, f"operation was interrupted: cursor {cursor_id} was killed")
        except CommandError as error:
            is_usable = error.code in ARGUMENT_ERRORS and not entry.is_killed
            raise
        finally:
            entry.is_checked_out = False
            entry.last_used = trio.current_time()
            if not is_usable or entry.cursor.is_exhausted:
                self._end(entry)
            else:
                UNREAD_REPLIES.holdings.keep(entry, entry.cursor.held_bytes, client)

    def kill(self, cursor_id: int, db: str | None = None) -> bool:
        """End a cursor, interrupting its reader.

        Args:
            cursor_id: the cursor.
            db: the database it has to belong to, None for any.

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
        else:
            self._end(entry)
        return True

    def kill_sessions(self, sessions: Collection[bytes]) -> int:
        """End all cursors of some sessions, given by the 16 bytes of their ids; returns how many there were."""
        found = [entry.id for entry in self._cursors.values() if entry.owner.session in sessions]
        return sum(self.kill(cursor_id) for cursor_id in found)

    def kill_all(self) -> int:
        """End all cursors; returns how many there were."""
        return sum(self.kill(cursor_id) for cursor_id in list(self._cursors))

    def kill_remotes(self, remotes: Iterable[RemoteCursor]) -> None:
        """Kill cursors on shards that no cursor of ours needs any longer, in the background."""
        for remote in remotes:
            remote.give_up()
            if not remote.is_exhausted:
                self._to_kill.send_nowait(remote)

    def reap(self, now: float) -> int:
        """End the cursors that have been idle for too long; returns how many.

        Args:
            now: on trio's clock.
        """
        limit = now - self._idle_milliseconds_max() / 1000
        expired = [
            entry
            for entry in self._cursors.values()
            if entry.last_used <= limit and not entry.is_checked_out and not entry.is_immortal
        ]
        for entry in expired:
            logger.info("A cursor timed out", cursor_id=entry.id, namespace=entry.cursor.namespace)
            self._end(entry)
        self._timed_out += len(expired)
        return len(expired)

    def end_for_room(self, entry: OpenCursor) -> None:
        """End an idle cursor to free its memory."""
        logger.info(
            "Killed an idle cursor to free memory for other replies",
            cursor_id=entry.id,
            namespace=entry.cursor.namespace,
        )
        self._end(entry)

    def statistics(self) -> CursorStatistics:
        """The current numbers."""
        entries = self._cursors.values()
        multiple = sum(len(entry.cursor.remotes) > 1 for entry in entries)
        return CursorStatistics(
            open_total=len(entries),
            open_pinned=sum(entry.is_checked_out for entry in entries),
            open_no_timeout=sum(entry.is_immortal for entry in entries),
            open_single_shard=len(entries) - multiple,
            open_multiple_shards=multiple,
            open_of_closed_connections=sum(
                entry.client is not None and entry.client.stream.is_closed for entry in entries
            ),
            opened=self._opened,
            timed_out=self._timed_out,
        )

    def _end(self, entry: OpenCursor) -> None:
        self._cursors.pop(entry.id, None)
        UNREAD_REPLIES.holdings.drop(entry)
        self.kill_remotes(entry.cursor.remotes)

    async def _reap_repeatedly(self) -> None:
        while True:
            await trio.sleep(_REAP_SECONDS)
            self.reap(trio.current_time())

    async def _kill_remote(self, remote: RemoteCursor) -> None:
        """Kill a cursor on a shard; one that cannot be killed now times out there."""
        try:
            with trio.fail_after(_KILL_SECONDS_MAX):
                await remote.kill()
        except (BackendError, trio.TooSlowError) as error:
            logger.debug("Could not kill a cursor on a shard", shard=remote.shard_id, error=str(error) or "timeout")
