"""The commands that are events of the audit log, and the recorded parameters. Pure.

Names and parameters of events are MongoDB Enterprise's. Changes of sharding for which it has no event are named after
their commands. An event is written when its command has ended, with the code of its error. Log-ins and log-outs are not
here, because only the authentication code has their details.

Direct writes to the collections of users and roles are events too. A daemon cannot see the result of an update, so such
an event has only the collection and the kind.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeAlias

from bson.errors import InvalidBSON

from shardwright.daemon.users import UserName
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import InvalidBSONError, decode_document
from shardwright.wire.request import Request, shown_body
from shardwright.wire.tls import Subject, subject_text

Event: TypeAlias = tuple[str, dict[str, Any]]
"""An event's name and parameters."""

AUTHENTICATE: Final = "authenticate"
LOGOUT: Final = "logout"

DISCONNECTED: Final = "Client has disconnected"

_UNREADABLE: Final = (CommandError, InvalidBSON, InvalidBSONError, RecursionError)
_NOT_IN_ARGUMENTS: Final = frozenset({"lsid", "$clusterTime", "$db"})

DIRECT_WRITE: Final = "directAuthMutation"
"""The event."""

_ADMIN: Final = "admin"
_AUTH_COLLECTIONS: Final = frozenset({"admin.system.roles", "admin.system.users"})
"""The collections with a server's users, including credentials, and roles."""

_WRITE_OPERATIONS: Final[Mapping[str, str]] = {
    "insert": "insert",
    "update": "update",
    "delete": "remove",
    "findAndModify": "update",
    "_mergeAuthzCollections": "command",
}
_MERGED_INTO: Final = {"tempUsersCollection": "admin.system.users", "tempRolesCollection": "admin.system.roles"}
"""Target collections of mongorestore's ``_mergeAuthzCollections``, by the field that names the source."""

_SHOWN_FIELDS: Final = ("_id", "user", "role", "db", "roles", "privileges", "customData")
"""Document fields that are recorded unchanged. Of credentials, only the mechanisms are recorded."""


def is_event(request: Request, name: str, code: int) -> bool:
    """Whether a command that has ended may be an event.

    Args:
        name: the command's name, without aliases.
        code: its error code, 0 if it has succeeded.
    """
    if code == ErrorCode.Unauthorized or name in _SAME_NAME or name in _EVENTS or name in SHARDING_CHANGES:
        return True
    return _may_write_directly(request, name)


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
    elif _may_write_directly(request, name):
        yield from _direct_writes(request, name, namespace)


def _named(request: Request, name: str) -> dict[str, Any]:
    """Return the parameters of an event about a user or a role."""
    fields = {field: _value_of(request, field) for field in _SAME_NAME[name]}
    return {
        **({_SUBJECTS[name]: _first_of(request)} if name in _SUBJECTS else {}),
        "db": request.db,
        **({"passwordChanged": b"pwd" in request.fields} if name == "updateUser" else {}),
        **{field: value for field, value in fields.items() if value is not None},
    }


def _arguments(request: Request, namespace: str) -> dict[str, Any]:
    """Return the command without secrets and without fields unrelated to its meaning."""
    if namespace in _AUTH_COLLECTIONS:  # its arguments may be credentials
        return {request.name: _first_of(request)}
    document = decode_document(shown_body(request))
    return {name: value for name, value in document.items() if name not in _NOT_IN_ARGUMENTS}


def _create(request: Request, namespace: str) -> Iterator[Event]:
    view = {name: value for name in ("viewOn", "pipeline") if (value := _value_of(request, name)) is not None}
    yield "createCollection", {"ns": namespace, **view}


def _drop(_: Request, namespace: str) -> Iterator[Event]:
    yield "dropCollection", {"ns": namespace}


def _drop_database(request: Request, _: str) -> Iterator[Event]:
    yield "dropDatabase", {"ns": request.db}


def _create_indexes(request: Request, namespace: str) -> Iterator[Event]:
    for index in _value_of(request, "indexes") or ():
        if isinstance(index, Mapping):
            yield "createIndex", {"ns": namespace, "indexName": index.get("name"), "indexSpec": dict(index)}


def _drop_indexes(request: Request, namespace: str) -> Iterator[Event]:
    named = _value_of(request, "index")
    for index in named if isinstance(named, list) else [named]:
        yield "dropIndex", {"ns": namespace, "indexName": index}


def _rename_collection(request: Request, _: str) -> Iterator[Event]:
    yield "renameCollection", {"old": _first_of(request), "new": _value_of(request, "to")}


def _reconfigure(request: Request, _: str) -> Iterator[Event]:
    yield "replSetReconfig", {"new": _first_of(request)}


def _shut_down(_request: Request, _: str) -> Iterator[Event]:
    yield "shutdown", {}


def _log_message(request: Request, _: str) -> Iterator[Event]:
    yield "applicationMessage", {"msg": _first_of(request)}


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


def _of_namespace(*fields: str) -> Callable[[Request], dict[str, Any]]:
    """Return a function that records the first field as a namespace, with some other fields."""
    return lambda request: {"ns": _first_of(request), **_present(request, *fields)}


def _of_shard(*fields: str) -> Callable[[Request], dict[str, Any]]:
    return lambda request: {"shard": _first_of(request), **_present(request, *fields)}


def _shard_collection(request: Request) -> dict[str, Any]:
    options = {"unique": bool(_value_of(request, "unique"))}
    return {"ns": _first_of(request), "key": _value_of(request, "key"), "options": options}


def _add_shard(request: Request) -> dict[str, Any]:
    return {"shard": _value_of(request, "name"), "connectionString": _first_of(request)}


def _present(request: Request, *fields: str) -> dict[str, Any]:
    values = {field: _value_of(request, field) for field in fields}
    return {field: value for field, value in values.items() if value is not None}


SHARDING_CHANGES: Final[Mapping[str, Callable[[Request], dict[str, Any]]]] = {
    "enableSharding": _of_namespace(),
    "shardCollection": _shard_collection,
    "refineCollectionShardKey": _of_namespace("key"),
    "addShard": _add_shard,
    "removeShard": _of_shard(),
    "reshardCollection": _of_namespace("key", "unique", "numInitialChunks", "zones", "collation"),
    "abortReshardCollection": _of_namespace(),
    "commitReshardCollection": _of_namespace(),
    "cleanupReshardCollection": _of_namespace(),
    "movePrimary": _of_namespace("to"),
    "moveChunk": _of_namespace("find", "bounds", "to"),
    "moveRange": _of_namespace("min", "max", "toShard"),
    "split": _of_namespace("find", "bounds", "middle"),
    "mergeChunks": _of_namespace("bounds"),
    "clearJumboFlag": _of_namespace("find", "bounds"),
    "repairShardedCollectionChunksHistory": _of_namespace(),
    "addShardToZone": _of_shard("zone"),
    "removeShardFromZone": _of_shard("zone"),
    "updateZoneKeyRange": _of_namespace("min", "max", "zone"),
    "balancerStart": lambda _: {},
    "balancerStop": lambda _: {},
    "configureCollectionBalancing": _of_namespace("chunkSize", "defragmentCollection", "enableAutoSplitter"),
    "setAllowMigrations": _of_namespace("allowMigrations"),
}
"""The parameters of each event, by the name of command and event."""


def _may_write_directly(request: Request, name: str) -> bool:
    """Whether a command may be such a write, from a cheap check."""
    return name in _WRITE_OPERATIONS and request.db == _ADMIN


def _direct_writes(request: Request, name: str, namespace: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the events of a write, none unless it is to one of the collections.

    Args:
        request: a command for which `_may_write_directly` is true.
        name: the command's name, without aliases.
    """
    operation = _WRITE_OPERATIONS[name]
    if operation == "command":
        merged = (into for field, into in _MERGED_INTO.items() if _value_of(request, field))
        yield from ((DIRECT_WRITE, {"ns": into, "operation": operation}) for into in merged)
    if namespace not in _AUTH_COLLECTIONS:
        return
    documents = _value_of(request, "documents") if operation == "insert" else None
    for document in documents if isinstance(documents, list) else (None,):
        shown = {"document": _shown(document)} if isinstance(document, Mapping) else {}
        yield DIRECT_WRITE, {**shown, "ns": namespace, "operation": operation}


def _shown(document: Mapping[str, Any]) -> dict[str, Any]:
    shown = {name: document[name] for name in _SHOWN_FIELDS if name in document}
    credentials = document.get("credentials")
    return {**shown, "credentials": sorted(credentials)} if isinstance(credentials, Mapping) else shown


def _value_of(request: Request, name: str) -> Any:  # noqa: ANN401 - whatever a client sent
    """Return the value of a field; a document sequence is an array outside of the body."""
    for sequence in request.message.sequences:
        if sequence.name == name.encode():
            return [decode_document(document) for document in sequence.documents]
    return request.get(name.encode())


def _first_of(request: Request) -> Any:  # noqa: ANN401 - whatever a client sent
    """Return the value of the field that has the command's name."""
    return request.get(request.name.encode())
