"""A user as the config servers describe it: roles and privileges, inherited ones included, and credentials. Pure.

`AuthorizedUser` is the user who has logged in. `Account` is the input of a log-in.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network
from itertools import count
from typing import Any, Final, Self, TypeAlias

from shardwright.daemon.users import ANY_ACTION, CLUSTER, SYSTEM, Privileges, UserName, with_owner_of_session
from shardwright.router.access.internal_fields import BYPASS
from shardwright.wire.message import BODY_AT
from shardwright.wire.rawbson import encode_elements
from shardwright.wire.request import Request
from shardwright.wire.scram import MECHANISMS, Credentials, Mechanism

_BYPASSING: Final = encode_elements({BYPASS.decode(): True})
_BLOCKED: Final = encode_elements({BYPASS.decode(): False})


def write_block_element(privileges: Privileges) -> bytes:
    """Encode for shards whether a user may write while the user write block is on."""
    return _BYPASSING if privileges.allow("bypassWriteBlockingMode", CLUSTER) else _BLOCKED


Addresses: TypeAlias = tuple[str | None, str | None]
"""The addresses of a client and of the server it connected to; None on a UNIX socket."""

NO_ADDRESSES: Final[Addresses] = (None, None)

_Alternatives = Sequence[Mapping[str, Sequence[str]]]


@dataclass(frozen=True, slots=True)
class Restrictions:
    """Authentication restrictions. In each list, at least one restriction must be met in full.

    Attributes:
        lists: the user's list, and one for each role; an empty list restricts nothing.
    """

    lists: Sequence[_Alternatives]

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        """Decode the restrictions in a reply to ``usersInfo``."""
        inherited = document.get("inheritedAuthenticationRestrictions", [])
        return cls([each for each in (document.get("authenticationRestrictions", []), *inherited) if each])

    def are_met(self, addresses: Addresses) -> bool:
        """Whether a connection meets the restrictions; without addresses it meets none."""
        client, server = addresses
        return all(any(_is_met(each, client, server) for each in alternatives) for alternatives in self.lists)


def _is_met(restriction: Mapping[str, Sequence[str]], client: str | None, server: str | None) -> bool:
    sides = {"clientSource": client, "serverAddress": server}
    return all(name in sides and _is_in(sides[name], networks) for name, networks in restriction.items())


def _is_in(address: str | None, networks: Sequence[str]) -> bool:
    return address is not None and any(ip_address(address) in ip_network(network, strict=False) for network in networks)


_REMEMBERED_MAX: Final = 1000

_permits = count(1)


def _new_permit() -> bytes:
    return next(_permits).to_bytes(8, "little")


@dataclass(eq=False, slots=True)
class AuthorizedUser:
    """A user with resolved roles and privileges.

    Attributes:
        roles: the name and the database of each role that was granted to the user directly.
        role_documents: all roles, inherited ones included, as ``connectionStatus`` shows them.
        privilege_documents: all privileges, inherited ones included, as ``connectionStatus`` shows them.
        privileges: the decoded `privilege_documents`.
        restrictions: the addresses from which the user may connect.
        write_block_element: the result of `write_block_element` for the user.
        user_id: distinguishes the user from a later one of the same name.
        good_until: until when this description may be used without checking the cache of users, by `time.monotonic`.
            Set by the cache alone.
        permit: identifies the user with these privileges; passages of the user belong to it.
    """

    name: UserName
    roles: frozenset[tuple[str, str]]
    role_documents: Sequence[Mapping[str, Any]]
    privilege_documents: Sequence[Mapping[str, Any]]
    privileges: Privileges
    restrictions: Restrictions
    write_block_element: bytes
    user_id: bytes = b""
    good_until: float = 0.0
    permit: bytes = field(default_factory=_new_permit)
    _admitted: set[tuple[str, str, bytes]] = field(default_factory=set)

    def is_remembered(self, name: str, request: Request) -> bool:
        """Whether the command on the same collection was remembered as allowed."""
        return (name, request.db, _collection(request)) in self._admitted

    def remember(self, name: str, request: Request) -> None:
        """Remember that the user may run a command on the request's collection; users repeat the same few commands."""
        if len(self._admitted) < _REMEMBERED_MAX:
            self._admitted.add((name, request.db, _collection(request)))

    def keep_permit(self, earlier: "AuthorizedUser") -> None:
        """Keep the permit of an earlier description if it has the same privileges."""
        if earlier.user_id == self.user_id and earlier.privilege_documents == self.privilege_documents:
            self.permit = earlier.permit

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        """Decode the user in a reply to ``usersInfo`` with privileges and restrictions.

        Raises:
            KeyError, TypeError, ValueError: the document is malformed.
        """
        documents = document["inheritedPrivileges"]
        privileges = Privileges.from_documents(documents)
        return cls(
            UserName(document["user"], document["db"]),
            frozenset((role["role"], role["db"]) for role in document["roles"]),
            document["inheritedRoles"],
            documents,
            privileges,
            Restrictions.from_document(document),
            write_block_element(privileges),
            bytes(document.get("userId", b"")),
        )


def _collection(request: Request) -> bytes:
    """Return the raw name of the collection, after its type."""
    span = next(iter(request.fields.values()))
    return request.body[span[1] : span[3]]


_EVERYTHING = [{"resource": {"anyResource": True}, "actions": [ANY_ACTION]}]

SYSTEM_USER = AuthorizedUser(
    SYSTEM,
    frozenset(),
    [],
    _EVERYTHING,
    Privileges.from_documents(_EVERYTHING),
    Restrictions.from_document({}),
    b"",
    good_until=math.inf,
)
"""The user of the cluster's own connections."""


class FrameAdmission:
    """Admission of frames that differ from an admitted frame only in values that do not affect authorization."""

    __slots__ = ("_elements", "_end", "_owner", "_session", "_session_end", "_session_length", "_user", "added_bytes")

    def __init__(self, user: AuthorizedUser, request: Request, *, may_write: bool) -> None:
        """Prepare the admission of a layout.

        Args:
            user: the sender of a frame with the layout.
            may_write: as in `AccessControl.admit`.

        Raises:
            CommandError: from `with_owner_of_session`.
        """
        self._user = user.name
        self._elements = user.write_block_element if may_write else b""
        self._end = BODY_AT + len(request.body) - 1
        self._session, self._session_end, self._session_length, self._owner = 0, 0, b"", b""
        sent, owned = request.raw_object(b"lsid"), self.of_request(request).raw_object(b"lsid")
        if sent is not None and owned is not None and len(owned) > len(sent):
            span = request.fields[b"lsid"]
            self._session, self._session_end = BODY_AT + span[2], BODY_AT + span[3] - 1
            self._session_length, self._owner = owned[:4], owned[len(sent) - 1 : -1]
        self.added_bytes = len(self._owner) + len(self._elements)

    def of_frame(self, frame: bytes) -> bytes:
        """Return an admitted frame of the layout. The lengths of the frame and of its body still need an update."""
        end = self._end
        if not self._session:
            return b"".join((frame[:end], self._elements, frame[end:])) if self._elements else frame
        at, session_end = self._session, self._session_end
        return b"".join(
            (
                frame[:at],
                self._session_length,
                frame[at + 4 : session_end],
                self._owner,
                frame[session_end:end],
                self._elements,
                frame[end:],
            )
        )

    def of_request(self, request: Request) -> Request:
        """Return the admitted request of a frame of the layout."""
        return with_owner_of_session(request, self._user, self._elements)


@dataclass(frozen=True, slots=True)
class Account:
    """The input of a SCRAM log-in. Privileges are not part of it: they are read once the password is proven.

    Attributes:
        name: the name that the client gave.
        user_id: distinguishes the user from a later one of the same name.
        credentials: by mechanism, the credentials that verify a proof; matching one of several is enough.
    """

    name: UserName
    exists: bool
    user_id: bytes
    credentials: Mapping[Mechanism, Sequence[Credentials]]

    @property
    def mechanisms(self) -> list[str] | None:
        """The mechanisms that the user may log in with; None if there is no such user."""
        return [each.value for each in Mechanism if each in self.credentials] if self.exists else None

    @classmethod
    def from_documents(cls, name: UserName, documents: Sequence[Mapping[str, Any]]) -> Self:
        """Decode the account in a reply to ``usersInfo`` with credentials.

        Raises:
            KeyError, TypeError, ValueError: a document is malformed.
        """
        if not documents:
            return cls(name, exists=False, user_id=b"", credentials={})
        (document,) = documents
        credentials = {
            MECHANISMS[mechanism]: (Credentials.from_document(MECHANISMS[mechanism], stored),)
            for mechanism, stored in document.get("credentials", {}).items()
            if mechanism in MECHANISMS
        }
        return cls(name, exists=True, user_id=bytes(document.get("userId", b"")), credentials=credentials)
