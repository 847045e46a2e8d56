"""The session and transaction that a cursor belongs to, and who may read it."""

from base64 import b64encode
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final
from uuid import UUID

from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import BINARY, index
from shardwright.wire.request import Request

NO_USER: Final = sha256().digest()
"""MongoDB's user digest of sessions without authentication: the SHA-256 of nothing."""


@dataclass(frozen=True, slots=True)
class CursorOwner:
    """The session and the transaction that an operation runs in.

    Attributes:
        session: the 16 bytes of ``lsid.id``, None outside a session.
        transaction: ``txnNumber``, None outside a transaction.
        user: the digest of the user, empty without access control.
        admitted: what the client has asked for, if that matters later.
    """

    session: bytes | None = None
    transaction: int | None = None
    user: bytes = b""
    admitted: Request | None = field(default=None, compare=False)

    @property
    def session_key(self) -> bytes | None:
        """Identifies the session (`SessionId.key`): the same UUID may be used by several users."""
        return None if self.session is None else self.session + (self.user or NO_USER)

    @classmethod
    def of(cls, request: Request, user: bytes = b"") -> "CursorOwner":
        """The session and the transaction of a request.

        Args:
            request: the request.
            user: the digest of the user who has logged in on its connection. Where that is a part of the cluster, which
                acts for a user, the request says for whom.

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
        # A txnNumber without autocommit belongs to a retryable write, which opens no cursor.
        transaction = request.get(b"txnNumber") if b"autocommit" in request.fields else None
        return cls(session, transaction, user)

    def check(self, cursor_id: int, reader: "CursorOwner") -> None:
        """Refuse a ``getMore`` of another user, or from outside the session or the transaction that opened the cursor.

        Raises:
            CommandError: Unauthorized, the cursor is another user's; 50799 to 50804, mongos's numbers for the others.
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
"""Outside any session."""


def _session_text(owner: CursorOwner) -> str:
    """A session as MongoDB writes it: its id, its user's digest, and two fields that are empty for clients."""
    session = owner.session
    if session is None or len(session) != 16:
        return "- -  - "
    return f"{UUID(bytes=session)} - {b64encode(owner.user or NO_USER).decode()} -  - "
