"""Sessions named by a command, directly or by patterns, parsed with the errors of MongoDB's own parser. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Self

from shardwright.sharding.operation_session import read_uuid
from shardwright.sharding.session_cache import NO_USER, SessionId, digest_of_user
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
)
from shardwright.wire.request import Request
from shardwright.wire.type_names import type_name


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
