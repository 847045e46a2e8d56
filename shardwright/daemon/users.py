"""Users: their names, their privileges, and the sessions that belong to users or to daemons. Pure.

MongoDB reports the privileges of a user with all inherited ones, so their evaluation (`Privileges`) needs no roles.

A session id contains the digest of its user. Daemons use ids of their own on their mongods, and refuse these ids from
clients. A client that wrote in such a session would abort the daemon's transaction. Its transaction number could even
prevent mongod from executing anything more in that session.

Transactions that move documents run in the sessions `RESERVED_SESSION_IDS`. Change streams omit the events of these
sessions.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from typing import Any, Final, Self
from uuid import UUID

from bson import Binary

from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import BINARY, OBJECT, append, encode_elements, find
from shardwright.wire.request import Request
from shardwright.wire.request_validation import refuse_repeated_fields
from shardwright.wire.scram import SYSTEM_DATABASE, SYSTEM_USER

_LSID: Final = b"lsid"
_UID: Final = b"uid"
_DIGEST_AT: Final = 5  # in binary data, after its length and subtype

_USUAL_BEGINNING: Final = b"\x1e\0\0\0\5id\0\x10\0\0\0\4"
_USUAL_BYTES: Final = 30
"""Drivers send ``lsid: {id: <UUID>}``, which need not be searched for other fields."""

_OWNED_BEGINNING: Final = b"\x48\0\0\0\5id\0\x10\0\0\0\4"
_OWNED_UID: Final = b"\5uid\0\x20\0\0\0\0"
_OWNED_UID_AT: Final = 29
_OWNED_BYTES: Final = 72
"""Routers send ``lsid: {id: <UUID>, uid: <digest>}``, which need not be searched either."""

_USERS_MAX: Final = 1024

RESERVED_ID_START: Final = b"Shardwright"
"""The prefix of all reserved ids.

No random UUID has it, because the upper half of its seventh byte is the version, 4.
"""

ANY_ACTION: Final = "anyAction"

KEPT_APART: Final = frozenset({"local", "config"})
"""Databases that privileges on all databases exclude."""

_BUCKETS: Final = "system.buckets."

RESERVED_SESSION_IDS: Final = tuple(
    UUID(bytes=RESERVED_ID_START + b"\0\0\0\0" + bytes((number,))) for number in range(8)
)
"""The reserved session ids, the same on all shards: the product's name and a number."""


@dataclass(frozen=True, slots=True)
class UserName:
    """A user; the same name in two databases means two users."""

    user: str
    db: str

    @property
    def digest(self) -> bytes:
        """The user's digest in session ids."""
        return sha256(self.full_name.encode()).digest()

    @property
    def full_name(self) -> str:
        """User and database in one, the source of the digest."""
        return f"{self.user}@{self.db}"

    @property
    def is_internal(self) -> bool:
        """Whether this is a part of the cluster instead of a user."""
        return self == SYSTEM

    def to_document(self) -> dict[str, str]:
        """Return the user as in commands."""
        return {"user": self.user, "db": self.db}


SYSTEM: Final = UserName(SYSTEM_USER, SYSTEM_DATABASE)
"""The internal user of the cluster's processes."""


def with_owner_of_session(request: Request, user: UserName, elements: bytes = b"") -> Request:
    """Add the user's digest to the ``lsid`` of a request, which separates the sessions of users on all servers.

    Args:
        user: the authenticated user of its connection.
        elements: further elements to add to the request.

    Raises:
        CommandError: Unauthorized, it names another user's session; 40413, its ``lsid`` has two fields of one name.
    """
    span = request.fields.get(_LSID)
    if span is None or span[0] != OBJECT:
        return _with_elements(request, elements)
    body, at, end = request.body, span[2], span[3]
    if (
        end - at == _OWNED_BYTES
        and user.is_internal
        and body.startswith(_OWNED_BEGINNING, at)
        and body.startswith(_OWNED_UID, at + _OWNED_UID_AT)
    ):
        return _with_elements(request, elements)
    is_usual = end - at == _USUAL_BYTES and body.startswith(_USUAL_BEGINNING, at)
    if not is_usual:
        refuse_repeated_fields(body, at, "OperationSessionInfo.lsid")
    uid = None if is_usual else find(body, _UID, at)
    if uid is None:
        addition = _uid_element(user)
        total = len(body) + len(addition) + len(elements)
        head = total.to_bytes(4, "little") + body[4:at]
        return request.with_body(head + append(body[at:end], addition) + body[end:-1] + elements + b"\0")
    is_own = uid[0] == BINARY and body[uid[2] + _DIGEST_AT : uid[3]] == user.digest
    if not is_own and not user.is_internal:
        raise CommandError(ErrorCode.Unauthorized, "Unauthorized to set user digest in LogicalSessionId")
    return _with_elements(request, elements)


@lru_cache(_USERS_MAX)
def _uid_element(user: UserName) -> bytes:
    return encode_elements({"uid": Binary(user.digest)})


def _with_elements(request: Request, elements: bytes) -> Request:
    return request.with_body(append(request.body, elements)) if elements else request


def refuse_reserved_session(request: Request) -> None:
    """Refuse a client's request that uses a reserved session (Unauthorized)."""
    span = request.fields.get(_LSID)
    if span is not None and request.body.find(RESERVED_ID_START, span[2], span[3]) >= 0:
        raise CommandError(ErrorCode.Unauthorized, "not authorized to use a session that is reserved for daemons")


@dataclass(frozen=True, slots=True)
class Resource:
    """The resource of an action.

    Attributes:
        db: a database; empty for all databases.
        collection: a collection of it; None for the database itself.
        is_cluster: whether it is the cluster; the other two are empty then.
    """

    db: str = ""
    collection: str | None = None
    is_cluster: bool = False

    def patterns(self) -> Iterable[frozenset[tuple[str, Any]]]:
        """Yield the resources of privileges that include this one."""
        yield _pattern(anyResource=True)
        if self.is_cluster:
            yield _pattern(cluster=True)
            return
        collection = self.collection or ""
        if collection.startswith(_BUCKETS):
            yield from self._patterns_of_buckets(collection.removeprefix(_BUCKETS))
        yield _pattern(db=self.db, collection=collection)
        if self.collection is None:
            if self.db not in KEPT_APART:
                yield _pattern(db="", collection="")
            return
        yield _pattern(db="", collection=collection)
        if not self._is_special(collection):
            yield _pattern(db=self.db, collection="")
            if self.db not in KEPT_APART:
                yield _pattern(db="", collection="")

    def _is_special(self, collection: str) -> bool:
        """Whether privileges on the whole database exclude a collection."""
        return collection.startswith("system.") or (self.db == "local" and collection.startswith("replset."))

    def _patterns_of_buckets(self, name: str) -> Iterable[frozenset[tuple[str, Any]]]:
        for each in (name, ""):
            yield _pattern(db=self.db, system_buckets=each)
            yield _pattern(system_buckets=each)


CLUSTER: Final = Resource(is_cluster=True)
ANY: Final = Resource()
"""The resource of privileges on all databases."""


class Privileges:
    """The privileges of one user."""

    __slots__ = ("_actions",)

    def __init__(self, actions: Mapping[frozenset[tuple[str, Any]], frozenset[str]]) -> None:
        self._actions = actions

    @classmethod
    def from_documents(cls, privileges: Iterable[Mapping[str, Any]]) -> Self:
        """Read the privileges in a reply: ``[{resource: {db, collection}, actions: [action, …]}, …]``."""
        actions: dict[frozenset[tuple[str, Any]], frozenset[str]] = {}
        for privilege in privileges:
            pattern = frozenset(privilege["resource"].items())
            actions[pattern] = actions.get(pattern, frozenset()) | frozenset(privilege["actions"])
        return cls(actions)

    def allow(self, action: str, resource: Resource) -> bool:
        """Whether the privileges allow an action on a resource."""
        for pattern in resource.patterns():
            actions = self._actions.get(pattern)
            if actions is not None and (action in actions or ANY_ACTION in actions):
                return True
        return False

    def resources(self) -> Iterable[Mapping[str, Any]]:
        """Yield the resources on which the privileges allow anything, in the form of privileges."""
        return (dict(pattern) for pattern, actions in self._actions.items() if actions)


NO_PRIVILEGES: Final = Privileges({})


def _pattern(**fields: str | bool) -> frozenset[tuple[str, Any]]:
    return frozenset(fields.items())
