"""A cursor that a client has open, both between ``getMore`` requests and during one.

Only its session, and its transaction if it has one, may read it. Its root stage returns the documents.

Cursor ids are random, positive, and contain the index of the worker process: the six bits below the sign. So each
worker can find the holder of a cursor.
"""

from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Final
from uuid import UUID

import trio

from shardwright.router.exec.stage import GetMore, Stage
from shardwright.router.replies.cursor_reply import NEXT_BATCH, cursor_element
from shardwright.router.replies.reply_builder import raw_reply
from shardwright.sharding.clock import VectorClock
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import BINARY, index
from shardwright.wire.request import Request
from shardwright.wire.transport.reply_memory import Holding

if TYPE_CHECKING:
    from shardwright.wire.transport.client_connection import ClientConnection


_WORKER_BITS: Final = 6
_RANDOM_BITS: Final = 63 - _WORKER_BITS

WORKERS_MAX: Final = 1 << _WORKER_BITS
"""Maximum number of worker processes that the ids can distinguish."""


def new_cursor_id(worker: int, random_bits: Callable[[int], int]) -> int:
    """Generate a cursor id; never 0, which means an exhausted cursor.

    Args:
        worker: index of the process that holds the cursor.
        random_bits: returns that many random bits as an integer, as ``random.SystemRandom().getrandbits``.
    """
    assert 0 <= worker < WORKERS_MAX
    return worker << _RANDOM_BITS | max(random_bits(_RANDOM_BITS), 1)


def worker_of(cursor_id: int) -> int | None:
    """Return the index of the worker that holds the cursor, None for a number that cannot be a router's id."""
    return cursor_id >> _RANDOM_BITS if cursor_id > 0 else None


class Cursor:
    """The results of one command for a client.

    Attributes:
        namespace: the ``db.collection`` that ``getMore`` must name.
        root: the stage that returns the documents.
    """

    __slots__ = ("_clock", "namespace", "root")

    def __init__(self, namespace: str, root: Stage, clock: VectorClock) -> None:
        self._clock = clock
        self.namespace = namespace
        self.root = root

    async def next_batch(self, get_more: GetMore) -> bytes | None:
        """Return the reply frame for a ``getMore``; None if the reply has already been relayed to the client.

        Raises:
            CommandError: BadValue for ``maxTimeMS``, which is for cursors that await data; or from `Stage.next_batch`.
        """
        root = self.root
        if get_more.max_time_ms and not root.awaits_data:
            raise CommandError(ErrorCode.BadValue, "cannot set maxTimeMS on getMore command for a non-awaitData cursor")
        answer = await root.answer(get_more)
        if isinstance(answer, bytes):
            return answer or None
        element = batch_element(
            root, NEXT_BATCH, answer, 0 if root.is_exhausted else get_more.cursor_id, self.namespace
        )
        return raw_reply(get_more.request.message.request_id, element, self._clock, root.operation_time)


def batch_element(
    root: Stage, batch_name: bytes, documents: list[bytes], cursor_id: int, namespace: str
) -> list[bytes]:
    """Encode the elements of a reply with documents of a root stage, in pieces; ``cursor_id`` is 0 at the end."""
    pieces = cursor_element(
        batch_name,
        documents,
        cursor_id,
        namespace,
        is_partial=root.is_partial,
        at_cluster_time=root.at_cluster_time,
        post_batch_resume_token=root.resume_token,
    )
    pieces.append(root.reply_elements)
    return pieces


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
        is_in_passage: whether that ``getMore`` was begun by a passage.
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
        "is_in_passage",
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
        self.is_in_passage = False
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
