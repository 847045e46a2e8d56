"""A cursor that a client has open, both between ``getMore`` requests and during one.

It belongs to a session and perhaps a transaction, which decide who may read it.
"""

from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Final
from uuid import UUID

import trio

from shardwright.router.cursors.cursor import Cursor
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import BINARY, index
from shardwright.wire.request import Request
from shardwright.wire.transport.reply_memory import Holding

if TYPE_CHECKING:
    from shardwright.wire.transport.client_connection import ClientConnection


NO_USER: Final = sha256().digest()
"""MongoDB's user digest of sessions without authentication: the SHA-256 of an empty string."""


@dataclass(frozen=True, slots=True)
class CursorOwner:
    """The session and the transaction that an operation runs in.

    Attributes:
        session: the 16 bytes of ``lsid.id``, None outside a session.
        transaction: ``txnNumber``, None outside a transaction.
        user: the digest of the user, empty without access control.
        admitted: the client's command, if a later ``getMore`` must be authorized by it.
    """

    session: bytes | None = None
    transaction: int | None = None
    user: bytes = b""
    admitted: Request | None = field(default=None, compare=False)

    @property
    def session_key(self) -> bytes | None:
        """The key of the session (`SessionId.key`), with the user, because several users may use the same UUID."""
        return None if self.session is None else self.session + (self.user or NO_USER)

    @classmethod
    def of(cls, request: Request, user: bytes = b"") -> "CursorOwner":
        """Return the session and the transaction of a request.

        Args:
            user: the digest of the user who has logged in on its connection. A cluster member that acts for a user
                names that user in the request.

        Raises:
            CommandError: TypeMismatch, ``lsid`` is not a document.
        """
        lsid = request.raw_object(b"lsid")
        if lsid is None:
            return cls(user=user) if user else NOBODY
        fields = index(lsid)
        identifier, uid = fields.get(b"id"), fields.get(b"uid")
        if uid is not None and uid[0] == BINARY:
            named = lsid[uid[2] + 5 : uid[3]]
            if user or named != NO_USER:
                user = named
        session = lsid[identifier[2] + 5 : identifier[3]] if identifier and identifier[0] == BINARY else lsid
        # A txnNumber without autocommit belongs to a retryable write, which does not open cursors.
        transaction = request.get(b"txnNumber") if b"autocommit" in request.fields else None
        return cls(session, transaction, user)

    def check(self, cursor_id: int, reader: "CursorOwner") -> None:
        """Refuse a ``getMore`` of another user, session or transaction than the one that opened the cursor.

        Raises:
            CommandError: Unauthorized, the cursor is another user's; 50799 to 50804, mongos's codes for the others.
        """
        if self == reader:
            return
        if self.user != reader.user:
            raise CommandError(
                ErrorCode.Unauthorized, f"cursor id {cursor_id} was not created by the authenticated user"
            )
        prefix = f"Cannot run getMore on cursor {cursor_id}, which was"
        if self.session != reader.session:
            ours, theirs = _session_text(self), _session_text(reader)
            if self.session is None:
                raise CommandError(50799, f"{prefix} not created in a session, in session {theirs}")
            if reader.session is None:
                raise CommandError(50800, f"{prefix} created in session {ours}, without an lsid")
            raise CommandError(50801, f"{prefix} created in session {ours}, in session {theirs}")
        if self.transaction is None:
            raise CommandError(50802, f"{prefix} not created in a transaction, in transaction {reader.transaction}")
        if reader.transaction is None:
            raise CommandError(50803, f"{prefix} created in transaction {self.transaction}, without a txnNumber")
        raise CommandError(
            50804, f"{prefix} created in transaction {self.transaction}, in transaction {reader.transaction}"
        )


NOBODY: Final = CursorOwner()
"""The owner of cursors outside any session."""


def _session_text(owner: CursorOwner) -> str:
    """Format a session as MongoDB does: its id, its user's digest, and two fields that are empty for clients."""
    session = owner.session
    if session is None or len(session) != 16:
        return "- -  - "
    return f"{UUID(bytes=session)} - {b64encode(owner.user or NO_USER).decode()} -  - "


class OpenCursor(Holding):
    """A cursor with its owner. The documents that it holds between two requests count as unread replies.

    Args:
        end_for_room: ends the cursor when its memory is needed for other replies.

    Attributes:
        id: the client's id for the cursor.
        client: the connection that last read it, if known.
        session_key: the session that the cursor ends with (`SessionId.key`), None if there is none.
        batches: the number of batches returned, including the first one.
        is_immortal: whether the idle timeout does not apply.
        is_checked_out: whether a ``getMore`` is reading it.
        is_killed: whether it was killed while it was checked out.
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
        """Refuse a ``getMore`` that may not read the cursor now.

        Raises:
            CommandError: CursorInUse; Unauthorized, it reads another namespace; 50799 to 50804, the session or the
                transaction differs.
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
        """Whether the cursor was last read before ``limit``, on trio's clock, and must end for that.

        As in MongoDB, a cursor of a session ends with the session, unless ``sessions_time_out``.
        """
        is_kept = self.is_checked_out or self.is_immortal or (self.session_key is not None and not sessions_time_out)
        return self.last_used <= limit and not is_kept

    def end(self) -> None:
        """End the cursor, see `Holding`; later reads fail with CursorNotFound."""
        self._end_for_room(self)
