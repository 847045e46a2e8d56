"""A user as the config servers describe it: roles and privileges, inherited ones included. Pure."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self

from shardwright.daemon.privileges import ANY_ACTION, Privileges
from shardwright.daemon.user_names import SYSTEM, UserName
from shardwright.router.access.internal_fields import write_block_element
from shardwright.router.access.restrictions import Restrictions
from shardwright.wire.request import Request

_REMEMBERED_MAX: Final = 1000


@dataclass(eq=False, slots=True)
class AuthorizedUser:
    """What the operations of a user need to know of it.

    Attributes:
        name: the user.
        roles: the name and the database of each role that was granted to the user.
        role_documents: all roles, inherited ones included, as ``connectionStatus`` shows them.
        privilege_documents: likewise the privileges.
        privileges: the same, to be asked.
        restrictions: from where the user may connect.
        write_block_element: see `internal_fields.write_block_element`.
        user_id: tells the user from a later one of the same name.
        good_until: when the cache of users has to be asked again whether this is what is known of the user, by
            `time.monotonic`. The cache alone sets it.
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
    _admitted: set[tuple[str, str, bytes]] = field(default_factory=set)

    def may(self, name: str, request: Request) -> bool:
        """Whether a command on the same collection was remembered."""
        return (name, request.db, _collection(request)) in self._admitted

    def remember(self, name: str, request: Request) -> None:
        """Remember that the user may run a command on the request's collection: users read the same few again."""
        if len(self._admitted) < _REMEMBERED_MAX:
            self._admitted.add((name, request.db, _collection(request)))

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        """The user in a reply to ``usersInfo`` with privileges and restrictions.

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
    """The raw name of the collection, after its type."""
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
"""A part of the cluster."""
