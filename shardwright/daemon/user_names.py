"""Users as servers name them, and the digest by which sessions belong to them. Pure."""

from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from typing import Final

from bson import Binary

from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import BINARY, OBJECT, append, encode_elements, find
from shardwright.wire.repeated_fields import refuse_repeated_fields
from shardwright.wire.request import Request
from shardwright.wire.scram.system_user import SYSTEM_DATABASE, SYSTEM_USER

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
