"""The commands that are events of the audit log, and the recorded parameters. Pure.

Names and parameters of events are MongoDB Enterprise's, which has none for some changes of sharding. An event is
written when its command has ended, with the code of its error. Log-ins and log-outs are not here, because only the
authentication code has their details.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeAlias

from bson.errors import InvalidBSON

from shardwright.daemon.audit.direct_writes import AUTH_COLLECTIONS, direct_writes, may_write_directly
from shardwright.daemon.audit.fields import first_of, value_of
from shardwright.daemon.audit.sharding_changes import SHARDING_CHANGES
from shardwright.daemon.user_names import UserName
from shardwright.wire.command_secrets import shown_body
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import InvalidBSONError, decode_document
from shardwright.wire.request import Request
from shardwright.wire.tls.subject_names import Subject, subject_text

Event: TypeAlias = tuple[str, dict[str, Any]]
"""An event's name and parameters."""

AUTHENTICATE: Final = "authenticate"
LOGOUT: Final = "logout"

DISCONNECTED: Final = "Client has disconnected"

_UNREADABLE: Final = (CommandError, InvalidBSON, InvalidBSONError, RecursionError)
_NOT_IN_ARGUMENTS: Final = frozenset({"lsid", "$clusterTime", "$db"})


def is_event(request: Request, name: str, code: int) -> bool:
    """Whether a command that has ended may be an event.

    Args:
        name: the command's name, without aliases.
        code: its error code, 0 if it has succeeded.
    """
    if code == ErrorCode.Unauthorized or name in _SAME_NAME or name in _EVENTS or name in SHARDING_CHANGES:
        return True
    return may_write_directly(request, name)


def events_of(request: Request, name: str, code: int, namespace: str) -> list[Event]:
    """Return the events of a command that has ended; several if it concerns several indexes.

    Args:
        name: as `is_event`.
        code: as `is_event`.
    """
    try:
        return list(_events(request, name, code, namespace))
    except _UNREADABLE:  # such a request was refused
        return [("authCheck", {"command": name})] if code == ErrorCode.Unauthorized else []


def log_in(user: UserName, mechanism: Any) -> Event:  # noqa: ANN401 - whatever a client sent
    """Return the event of a log-in by SCRAM, or of a failed attempt by any mechanism."""
    return AUTHENTICATE, {**user.to_document(), "mechanism": mechanism}


def certificate_log_in(request: Request, subject: Subject | None) -> Event:
    """Return the event of an ``authenticate`` command, whose default user is the certificate's subject."""
    named = subject_text(subject) if subject else None
    try:
        parameters = {"user": request.get(b"user", named), "db": request.db, "mechanism": request.get(b"mechanism")}
    except _UNREADABLE:
        parameters = {"user": named, "db": request.db}
    return AUTHENTICATE, parameters


def log_out(user: UserName, reason: str) -> Event:
    """Return the event of a log-out or of a lost connection."""
    return LOGOUT, {"reason": reason, "initialUsers": [user.to_document()], "updatedUsers": []}


def explicit_log_out(user: UserName, db: str) -> Event:
    """Return the event of a ``logout`` command on a database."""
    return log_out(user, f"Client has explicitly logged out from '{db}'")


def _events(request: Request, name: str, code: int, namespace: str) -> Iterator[Event]:
    if code == ErrorCode.Unauthorized:
        yield "authCheck", {"command": name, "ns": namespace, "args": _arguments(request, namespace)}
    elif name in _SAME_NAME:
        yield name, _named(request, name)
    elif name in SHARDING_CHANGES:
        yield name, SHARDING_CHANGES[name](request)
    elif name in _EVENTS:
        yield from _EVENTS[name](request, namespace)
    elif may_write_directly(request, name):
        yield from direct_writes(request, name, namespace)


def _named(request: Request, name: str) -> dict[str, Any]:
    """Return the parameters of an event about a user or a role."""
    fields = {field: value_of(request, field) for field in _SAME_NAME[name]}
    return {
        **({_SUBJECTS[name]: first_of(request)} if name in _SUBJECTS else {}),
        "db": request.db,
        **({"passwordChanged": b"pwd" in request.fields} if name == "updateUser" else {}),
        **{field: value for field, value in fields.items() if value is not None},
    }


def _arguments(request: Request, namespace: str) -> dict[str, Any]:
    """Return the command without secrets and without fields unrelated to its meaning."""
    if namespace in AUTH_COLLECTIONS:  # its arguments may be credentials
        return {request.name: first_of(request)}
    document = decode_document(shown_body(request))
    return {name: value for name, value in document.items() if name not in _NOT_IN_ARGUMENTS}


def _create(request: Request, namespace: str) -> Iterator[Event]:
    view = {name: value for name in ("viewOn", "pipeline") if (value := value_of(request, name)) is not None}
    yield "createCollection", {"ns": namespace, **view}


def _drop(_: Request, namespace: str) -> Iterator[Event]:
    yield "dropCollection", {"ns": namespace}


def _drop_database(request: Request, _: str) -> Iterator[Event]:
    yield "dropDatabase", {"ns": request.db}


def _create_indexes(request: Request, namespace: str) -> Iterator[Event]:
    for index in value_of(request, "indexes") or ():
        if isinstance(index, Mapping):
            yield "createIndex", {"ns": namespace, "indexName": index.get("name"), "indexSpec": dict(index)}


def _drop_indexes(request: Request, namespace: str) -> Iterator[Event]:
    named = value_of(request, "index")
    for index in named if isinstance(named, list) else [named]:
        yield "dropIndex", {"ns": namespace, "indexName": index}


def _rename_collection(request: Request, _: str) -> Iterator[Event]:
    yield "renameCollection", {"old": first_of(request), "new": value_of(request, "to")}


def _reconfigure(request: Request, _: str) -> Iterator[Event]:
    yield "replSetReconfig", {"new": first_of(request)}


def _shut_down(_request: Request, _: str) -> Iterator[Event]:
    yield "shutdown", {}


def _log_message(request: Request, _: str) -> Iterator[Event]:
    yield "applicationMessage", {"msg": first_of(request)}


_SUBJECTS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("createUser", "updateUser", "dropUser", "grantRolesToUser", "revokeRolesFromUser"), "user"),
    **dict.fromkeys(("createRole", "updateRole", "dropRole", "grantRolesToRole", "revokeRolesFromRole"), "role"),
    **dict.fromkeys(("grantPrivilegesToRole", "revokePrivilegesFromRole"), "role"),
}
"""The parameter name for the first field of a command."""

_SAME_NAME: Final[Mapping[str, tuple[str, ...]]] = {
    **dict.fromkeys(("createUser", "updateUser"), ("customData", "roles")),
    **dict.fromkeys(("grantRolesToUser", "revokeRolesFromUser", "grantRolesToRole", "revokeRolesFromRole"), ("roles",)),
    **dict.fromkeys(("createRole", "updateRole"), ("roles", "privileges")),
    **dict.fromkeys(("grantPrivilegesToRole", "revokePrivilegesFromRole"), ("privileges",)),
    **dict.fromkeys(("dropUser", "dropAllUsersFromDatabase", "dropRole", "dropAllRolesFromDatabase"), ()),
}
"""Events about users and roles, which have the name of their command, with the recorded fields."""

_EVENTS: Final[Mapping[str, Callable[[Request, str], Iterator[Event]]]] = {
    "create": _create,
    "drop": _drop,
    "dropDatabase": _drop_database,
    "createIndexes": _create_indexes,
    "dropIndexes": _drop_indexes,
    "renameCollection": _rename_collection,
    "replSetReconfig": _reconfigure,
    "shutdown": _shut_down,
    "logApplicationMessage": _log_message,
}
