"""Logical sessions: their uses on one server, and the sessions that a command names. Pure.

A session lives as long as its document in ``config.system.sessions``, which a TTL index deletes 30 minutes after its
last use. Servers collect the uses of their sessions (`SessionCache`) and write them every five minutes, each session
once.

Commands name sessions directly or by patterns. Both are parsed with the errors of MongoDB's own parser.
"""

from base64 import b64encode
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final, Self
from uuid import UUID

from bson.binary import UUID_SUBTYPE, Binary

from shardwright.sharding.transaction_protocol import check_lsid, read_uuid
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError, missing_field, unknown_field, wrong_type
from shardwright.wire.rawbson import (
    ARRAY,
    BINARY,
    NULL,
    OBJECT,
    STRING,
    InvalidBSONError,
    Span,
    decode_value,
    index,
    spans,
    type_name,
)
from shardwright.wire.request import Request

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
    """Return the ``uid`` of a user's sessions; empty names stand for clients without a user."""
    if not user and not db:
        return NO_USER
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


@dataclass(frozen=True, slots=True)
class MeantSessions:
    """A set of sessions; ``key in meant`` tests a `SessionId.key`.

    ``users`` are digests of users, for all of their sessions.
    """

    sessions: frozenset[SessionId] = frozenset()
    users: frozenset[bytes] = frozenset()
    all_of_them: bool = False

    @classmethod
    def of_users(cls, users: Iterable[bytes]) -> Self:
        """Return all sessions of some users, given their digests."""
        return cls(users=frozenset(users))

    def __contains__(self, key: object) -> bool:
        """Whether the set includes the session with a key."""
        if self.all_of_them:
            return True
        if not isinstance(key, bytes):
            return False
        session = SessionId.of_key(key)
        return session.uid in self.users or session in self.sessions

    def patterns(self) -> list[dict[str, object]]:
        """Build the equivalent argument of ``killAllSessionsByPattern``; empty for every session.

        The empty set of sessions has no equivalent.
        """
        if self.all_of_them:
            return []
        named = sorted(self.sessions, key=lambda session: session.key)
        of_sessions: list[dict[str, object]] = [{"lsid": session.to_document()} for session in named]
        of_users: list[dict[str, object]] = [{"uid": user} for user in sorted(self.users)]
        return of_sessions + of_users


ALL_SESSIONS: Final = MeantSessions(all_of_them=True)

_NOT_AN_OBJECT: Final = 10065

_SESSION_FIELDS: Final = {b"id": BINARY, b"uid": BINARY}
_PATTERN_FIELDS: Final = {b"lsid": OBJECT, b"uid": BINARY, b"users": ARRAY, b"roles": ARRAY}
_USER_FIELDS: Final = {b"user": STRING, b"db": STRING}

_Fields = Mapping[bytes, Span]


def sessions(request: Request, owner: bytes = NO_USER, *, may_name_others: bool = True) -> frozenset[SessionId]:
    """Parse the sessions in the array that is the command's argument.

    ``owner`` is the default user: the digest of the user who sends the command, and who may name sessions of others if
    ``may_name_others``.

    Raises:
        CommandError: TypeMismatch; 40414, a session has no id; 40415, it has another field; Unauthorized, it is another
            user's.
    """
    name = request.name
    # The names of MongoDB's definitions of these commands, and of the elements of the array.
    array, elements = (
        (f"KillSessionsCmd.{name}", f"KillSessionsCmd.{name}")
        if name == "killSessions"
        else (f"{name}.{name}", f"{name}.{name}FromClient")
    )
    found = _objects(request, array, elements)
    for fields in found:
        _check_fields(fields, _SESSION_FIELDS, elements)
    named = frozenset(_session(request.body, fields, elements, owner) for fields in found)
    if not may_name_others and any(session.uid != owner for session in named):
        raise CommandError(ErrorCode.Unauthorized, "Unauthorized to set user digest in LogicalSessionId")
    return named


def users(request: Request) -> MeantSessions:
    """Parse the users in the argument of ``killAllSessions``; all sessions if it names none.

    Raises TypeMismatch, 40414 or 40415.
    """
    path = f"KillAllSessionsCmd.{request.name}"
    found = _objects(request, path, path)
    for fields in found:
        _check_fields(fields, _USER_FIELDS, path)
        for name in _USER_FIELDS:
            _required(fields, name, path)
    names = (tuple(decode_value(request.body, fields[name]) for name in (b"user", b"db")) for fields in found)
    return MeantSessions.of_users(digest_of_user(*each) for each in names) if found else ALL_SESSIONS


def patterns(request: Request) -> MeantSessions:
    """Parse the patterns of ``killAllSessionsByPattern``; all sessions if there is no pattern.

    Raises TypeMismatch, 40414 or 40415.
    """
    path = f"KillAllSessionsByPatternCmd.{request.name}"
    found = _objects(request, path, path)
    named: set[SessionId] = set()
    owners: set[bytes] = set()
    for fields in found:
        _check_fields(fields, _PATTERN_FIELDS, path)
        if b"lsid" in fields:
            session = index(request.body, fields[b"lsid"][2])
            _check_fields(session, _SESSION_FIELDS, f"{path}.lsid")
            named.add(_session(request.body, session, f"{path}.lsid"))
            _required(session, b"uid", f"{path}.lsid")
        elif b"uid" in fields:
            owners.add(bytes(decode_value(request.body, fields[b"uid"])))
    if all(b"lsid" in fields or b"uid" in fields for fields in found) and found:
        return MeantSessions(frozenset(named), frozenset(owners))
    return ALL_SESSIONS


def _objects(request: Request, array: str, elements: str) -> list[dict[bytes, Span]]:
    """Index each document in the array that is the command's argument."""
    body = request.body
    argument = next(iter(request.fields.values()))
    if argument[0] == NULL:
        raise CommandError(_NOT_AN_OBJECT, f"invalid parameter: expected an object ({request.name})")
    if argument[0] != ARRAY:
        raise wrong_type(array, argument[0], type_name(ARRAY))
    found = []
    try:
        for position, element in spans(body, argument[2]):
            if element[0] != OBJECT:
                raise wrong_type(f"{elements}.{position.decode(errors='replace')}", element[0], type_name(OBJECT))
            found.append(index(body, element[2]))
    except InvalidBSONError as error:
        raise CommandError(ErrorCode.InvalidBSON, str(error)) from error
    return found


def _check_fields(fields: _Fields, known: Mapping[bytes, int], path: str) -> None:
    for name, span in fields.items():
        field = f"{path}.{name.decode(errors='replace')}"
        if name not in known:
            raise unknown_field(field)
        if span[0] != known[name]:
            raise wrong_type(field, span[0], type_name(known[name]))


def _required(fields: _Fields, name: bytes, path: str) -> Span:
    if name not in fields:
        raise missing_field(f"{path}.{name.decode(errors='replace')}")
    return fields[name]


def _session(body: bytes, fields: _Fields, path: str, owner: bytes = NO_USER) -> SessionId:
    identifier = read_uuid(body, _required(fields, b"id", path), f"{path}.id")
    uid = fields.get(b"uid")
    return SessionId(identifier, owner) if uid is None else SessionId(identifier, bytes(decode_value(body, uid)))
