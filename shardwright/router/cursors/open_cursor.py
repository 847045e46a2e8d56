"""A cursor that a client has open, between its requests and while one reads it."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import trio

from shardwright.router.cursors.cursor import Cursor
from shardwright.router.cursors.session import CursorOwner
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.transport.holdings import Holding

if TYPE_CHECKING:
    from shardwright.wire.transport.client_connection import ClientConnection


class OpenCursor(Holding):
    """A cursor and who may read it; the documents it holds use memory between two requests.

    Args:
        cursor_id: see below.
        cursor: see below.
        owner: see below.
        client: see below.
        session_key: see below.
        command: see below.
        is_immortal: see below.
        end_for_room: ends it when its memory is needed for other replies.

    Attributes:
        id: the client's id for it.
        cursor: what reads the results.
        owner: the session and transaction that opened it.
        client: the connection that last read it, if known.
        session_key: the session with which it ends (`SessionId.key`), None if there is none.
        command: the raw command that opened it.
        created: when it was opened.
        batches: how many batches it has returned, the first one included.
        is_immortal: it has no idle timeout.
        is_checked_out: a ``getMore`` is reading it.
        is_killed: it was killed while it was checked out.
        last_used: on trio's clock.
        scope: cancelled to interrupt the ``getMore`` that is reading it.
    """

    __slots__ = (
        "_end_for_room",
        "batches",
        "client",
        "command",
        "created",
        "cursor",
        "id",
        "is_checked_out",
        "is_immortal",
        "is_killed",
        "last_used",
        "owner",
        "scope",
        "session_key",
    )

    def __init__(
        self,
        cursor_id: int,
        cursor: Cursor,
        owner: CursorOwner,
        client: "ClientConnection | None",
        *,
        session_key: bytes | None,
        command: bytes,
        is_immortal: bool,
        end_for_room: Callable[["OpenCursor"], None],
    ) -> None:
        super().__init__()
        self._end_for_room = end_for_room
        self.id = cursor_id
        self.cursor = cursor
        self.owner = owner
        self.client = client
        self.session_key = session_key
        self.command = command
        self.created = datetime.now(UTC)
        self.batches = 1
        self.is_immortal = is_immortal
        self.is_checked_out = False
        self.is_killed = False
        self.last_used = trio.current_time()
        self.scope = trio.CancelScope()

    def check_readable(self, namespace: str, reader: CursorOwner) -> None:
        """Refuse a ``getMore`` that may not read it now.

        Raises:
            CommandError: CursorInUse; Unauthorized, it reads another namespace; 50799 to 50804, it belongs to another
                session or transaction.
        """
        if self.is_checked_out:
            raise CommandError(ErrorCode.CursorInUse, f"cursor id {self.id} is already in use")
        if self.cursor.namespace != namespace:
            raise CommandError(
                ErrorCode.Unauthorized,
                f"Requested getMore on namespace '{namespace}', but cursor belongs to a different namespace "
                f"{self.cursor.namespace}",
            )
        self.owner.check(self.id, reader)

    def is_expired(self, limit: float, *, sessions_time_out: bool) -> bool:
        """Whether it was last read before ``limit``, on trio's clock, and has to end for that.

        As in MongoDB, a cursor of a session ends with the session, unless ``sessions_time_out``.
        """
        is_kept = self.is_checked_out or self.is_immortal or (self.session_key is not None and not sessions_time_out)
        return self.last_used <= limit and not is_kept

    def end(self) -> None:
        """See `Holding`; later reads fail with CursorNotFound."""
        self._end_for_room(self)
