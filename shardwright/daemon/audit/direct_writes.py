"""Direct writes to the collections of users and roles, instead of user and role commands. Pure.

A daemon cannot see the result of an update, so its event has only the collection and the kind.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from shardwright.daemon.audit.fields import value_of
from shardwright.wire.request import Request

DIRECT_WRITE: Final = "directAuthMutation"
"""The event."""

_ADMIN: Final = "admin"
AUTH_COLLECTIONS: Final = frozenset({"admin.system.roles", "admin.system.users"})
"""The collections with a server's users, including credentials, and roles."""

_OPERATIONS: Final[Mapping[str, str]] = {
    "insert": "insert",
    "update": "update",
    "delete": "remove",
    "findAndModify": "update",
    "_mergeAuthzCollections": "command",
}
_MERGED_INTO: Final = {"tempUsersCollection": "admin.system.users", "tempRolesCollection": "admin.system.roles"}
"""Target collections of mongorestore's ``_mergeAuthzCollections``, by the field that names the source."""

_SHOWN: Final = ("_id", "user", "role", "db", "roles", "privileges", "customData")
"""Document fields that are recorded unchanged. Of credentials, only the mechanisms are recorded."""


def may_write_directly(request: Request, name: str) -> bool:
    """Whether a command may be such a write, from a cheap check."""
    return name in _OPERATIONS and request.db == _ADMIN


def direct_writes(request: Request, name: str, namespace: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the events of a write, none unless it is to one of the collections.

    Args:
        request: a command for which `may_write_directly` is true.
        name: the command's name, without aliases.
    """
    operation = _OPERATIONS[name]
    if operation == "command":
        merged = (into for field, into in _MERGED_INTO.items() if value_of(request, field))
        yield from ((DIRECT_WRITE, {"ns": into, "operation": operation}) for into in merged)
    if namespace not in AUTH_COLLECTIONS:
        return
    documents = value_of(request, "documents") if operation == "insert" else None
    for document in documents if isinstance(documents, list) else (None,):
        shown = {"document": _shown(document)} if isinstance(document, Mapping) else {}
        yield DIRECT_WRITE, {**shown, "ns": namespace, "operation": operation}


def _shown(document: Mapping[str, Any]) -> dict[str, Any]:
    shown = {name: document[name] for name in _SHOWN if name in document}
    credentials = document.get("credentials")
    return {**shown, "credentials": sorted(credentials)} if isinstance(credentials, Mapping) else shown
