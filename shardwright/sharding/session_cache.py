"""The logical sessions that one server has seen since its last write to ``config.system.sessions``.

A session lives as long as its document there, which a TTL index deletes 30 minutes after its last use. Servers collect
the uses of their sessions and write them every five minutes, each session once.
"""

from base64 import b64encode
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final, Self
from uuid import UUID

from bson.binary import UUID_SUBTYPE, Binary

from shardwright.sharding.operation_session import check_lsid
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import index

SESSIONS_MAX: Final = 1_000_000
"""Default of the parameter ``maxSessions``."""

REFRESH_MILLISECONDS: Final = 300_000
"""Default of the parameter ``logicalSessionRefreshMillis``."""

DB: Final = "config"
COLLECTION: Final = "system.sessions"
NAMESPACE: Final = f"{DB}.{COLLECTION}"

NO_USER: Final = bytes.fromhex("e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855")
"""SHA-256 of the empty string: the ``uid`` of sessions without authentication."""


_UUID_BYTES: Final = 16


def digest_of_user(user: str, db: str) -> bytes:
    """Return the ``uid`` of a user's sessions."""
    return sha256(f"{user}@{db}".encode()).digest()


@dataclass(frozen=True, slots=True)
class SessionId:
    """The ``_id`` of a session: the 16 bytes of its UUID, and the 32-byte digest of its user."""

    id: bytes
    uid: bytes = NO_USER

    @classmethod
    def read(cls, lsid: bytes) -> Self:
        """Read the session in a raw ``lsid``; raises as `check_lsid`."""
        identifier, uid = check_lsid(lsid, index(lsid))
        return cls(identifier, uid or NO_USER)

    @classmethod
    def of_key(cls, key: bytes) -> Self:
        """Return the session with this key."""
        return cls(key[:_UUID_BYTES], key[_UUID_BYTES:])

    def __str__(self) -> str:
        """Format a session as MongoDB does in messages."""
        return f"{UUID(bytes=self.id)} - {b64encode(self.uid).decode()} -  - "

    @property
    def key(self) -> bytes:
        """Bytes for look-ups in tables."""
        return self.id + self.uid

    def to_document(self) -> dict[str, Any]:
        """Build the value of ``_id``."""
        return {"id": Binary(self.id, UUID_SUBTYPE), "uid": Binary(self.uid)}


@dataclass(slots=True)
class SessionChanges:
    """The changes to write at a refresh.

    Attributes:
        used: the time of the last use of each session, in seconds since 1970.
        users: the full names of the users of sessions in ``used``, where there is access control.
    """

    used: dict[SessionId, float] = field(default_factory=dict)
    ended: set[SessionId] = field(default_factory=set)
    users: dict[SessionId, str] = field(default_factory=dict)


class SessionCache:
    """The sessions used and ended since the last refresh."""

    __slots__ = ("_changes", "_known", "_last_use", "_sessions_max")

    def __init__(self, sessions_max: int = SESSIONS_MAX) -> None:
        self._sessions_max = sessions_max
        # By the bytes of the lsid, so that the next use of a session is one look-up.
        self._last_use: dict[bytes, float] = {}
        self._known: dict[bytes, SessionId] = {}
        self._changes = SessionChanges()

    def __len__(self) -> int:
        """Return the number of sessions."""
        return len(self._last_use) + len(self._changes.used)

    def use_again(self, lsid: bytes, now: float) -> bool:
        """Record an operation in a session, if it was used since the last refresh; return whether it was."""
        if lsid not in self._last_use:
            return False
        self._last_use[lsid] = now
        return True

    def use(self, lsid: bytes, now: float, user: str = "") -> None:
        """Record an operation in a session of the raw ``lsid``, at a time in seconds since 1970.

        ``user`` is the full name of the session's user, if known. Raises TooManyLogicalSessions, or as `check_lsid`.
        """
        if self.use_again(lsid, now):
            return
        session = SessionId.read(lsid)
        if len(self) >= self._sessions_max:
            raise CommandError(
                ErrorCode.TooManyLogicalSessions,
                f"Unable to add session ID {session} into the cache because the number of active sessions is too high",
            )
        self._last_use[lsid] = now
        self._known[lsid] = session
        if user:
            self._changes.users[session] = user

    def end(self, sessions: Collection[SessionId]) -> None:
        """Record that clients have ended sessions."""
        self._changes.ended |= set(sessions)

    def sessions(self) -> dict[SessionId, float]:
        """Return the last use of each session, in seconds since 1970."""
        used = dict(self._changes.used)
        for lsid, last_use in self._last_use.items():
            session = self._known[lsid]
            used[session] = max(last_use, used.get(session, 0))
        return used

    @property
    def users(self) -> Mapping[SessionId, str]:
        """The full names of the users of sessions, where they are known."""
        return self._changes.users

    def take(self) -> SessionChanges:
        """Remove and return everything. A session that was ended counts as ended, even if it was used afterwards."""
        ended = self._changes.ended
        used = {session: last_use for session, last_use in self.sessions().items() if session not in ended}
        users = {session: user for session, user in self._changes.users.items() if session in used}
        changes = SessionChanges(used, ended, users)
        self._last_use, self._known, self._changes = {}, {}, SessionChanges()
        return changes

    def put_back(self, changes: SessionChanges) -> None:
        """Keep changes that could not be written for the next refresh."""
        self._changes.ended |= changes.ended
        self._changes.users = changes.users | self._changes.users
        for session, last_use in changes.used.items():
            self._changes.used[session] = max(last_use, self._changes.used.get(session, 0))
