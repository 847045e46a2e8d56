"""Which operations of clients are events of the audit log, and what is recorded of them.

Names and parameters of events are those of MongoDB Enterprise. An event is written when its command has ended, with the
code of its error. What a command does on shards is not recorded there.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeAlias

from bson.errors import InvalidBSON

from shardwright.daemon.audit_log import AuditLog
from shardwright.daemon.user_names import UserName
from shardwright.router.access.access_control import AccessControl
from shardwright.router.access.login import Login
from shardwright.router.operations.operation import Operation
from shardwright.router.operations.request_namespace import request_namespace
from shardwright.sharding.command_text import shown_body
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import InvalidBSONError, decode_document
from shardwright.wire.request import Request
from shardwright.wire.transport.client_connection import ClientConnection

Event: TypeAlias = tuple[str, dict[str, Any]]
"""Its name and its parameters."""

_UNREADABLE: Final = (CommandError, InvalidBSON, InvalidBSONError, RecursionError)
_NOT_IN_ARGUMENTS: Final = frozenset({"lsid", "$clusterTime", "$db"})


class RouterAudit:
    """Writes the events of one router process.

    Args:
        log: where to.
        access: knows the roles of users; None without access control.
    """

    def __init__(self, log: AuditLog, access: AccessControl | None) -> None:
        self._log = log
        self._access = access
        self._own_addresses: dict[int, dict[str, Any]] = {}

    def note(self, operation: Operation, name: str, code: int) -> None:
        """Write the events of an operation that has ended.

        Args:
            operation: the operation.
            name: its command, without aliases.
            code: of its error, 0 if it has succeeded.
        """
        try:
            events = list(_events(operation, name, code))
        except _UNREADABLE:  # such a request was refused
            events = [("authCheck", {"command": name})] if code == ErrorCode.Unauthorized else []
        for kind, parameters in events:
            self._log.write(kind, parameters, code, self._participants(operation.client))

    def note_arrived(self, client: ClientConnection) -> None:
        """Note to which address a client has connected, which its closed socket will not tell."""
        own = client.stream.socket.getsockname()
        self._own_addresses[client.id] = {"ip": own[0], "port": own[1]} if isinstance(own, tuple) else {"unix": own}

    def note_gone(self, client: ClientConnection) -> None:
        """Write that a client has gone without logging out."""
        login: Login | None = client.login
        if login is not None and login.user is not None:
            self._log.write("logout", _logout(login.user, "Client has disconnected"), 0, self._participants(client))
        del self._own_addresses[client.id]

    def _participants(self, client: ClientConnection) -> dict[str, Any]:
        login: Login | None = client.login
        name = None if login is None else login.user
        user = None if name is None or self._access is None else self._access.users.fresh(name)
        roles = [] if user is None else [{"role": each["role"], "db": each["db"]} for each in user.role_documents]
        return {
            "local": self._own_addresses[client.id],
            "remote": _address(client),
            "users": [] if name is None else [name.to_document()],
            "roles": roles,
        }


def _events(operation: Operation, name: str, code: int) -> Iterator[Event]:
    request, login = operation.request, operation.client.login
    if code == ErrorCode.Unauthorized:
        yield "authCheck", {"command": name, "ns": request_namespace(request), "args": _arguments(request)}
    elif name in _LOG_INS:
        yield from _log_in(login, request, code)
    elif name == "logout":
        if login is not None and login.previous is not None:
            previous, login.previous = login.previous, None
            yield name, _logout(previous, f"Client has explicitly logged out from '{request.db}'")
    elif name in _SAME_NAME:
        yield name, _named(request, name)
    elif name in _EVENTS:
        yield from _EVENTS[name](request)


def _log_in(login: Login | None, request: Request, code: int) -> Iterator[Event]:
    """The end of a log-in; the steps before are no events."""
    if login is None:
        return
    attempt, mechanism = login.attempt, request.get(b"mechanism")
    if request.name == "authenticate":
        yield "authenticate", {"user": request.get(b"user"), "db": request.db, "mechanism": mechanism}
    elif attempt is not None and (code or login.conversation is None):
        login.attempt = None
        yield "authenticate", {**attempt[0].to_document(), "mechanism": attempt[1]}


def _logout(user: UserName, reason: str) -> dict[str, Any]:
    return {"reason": reason, "initialUsers": [user.to_document()], "updatedUsers": []}


def _named(request: Request, name: str) -> dict[str, Any]:
    """The parameters of an event about a user or a role."""
    fields = {field: request.get(field.encode()) for field in _SAME_NAME[name]}
    return {
        **({_SUBJECTS[name]: _first(request)} if name in _SUBJECTS else {}),
        "db": request.db,
        **({"passwordChanged": b"pwd" in request.fields} if name == "updateUser" else {}),
        **{field: value for field, value in fields.items() if value is not None},
    }


def _arguments(request: Request) -> dict[str, Any]:
    """The command without secrets, and without what says nothing about it."""
    document = decode_document(shown_body(request))
    return {name: value for name, value in document.items() if name not in _NOT_IN_ARGUMENTS}


def _first(request: Request) -> Any:  # noqa: ANN401 - whatever a client sent
    """The value of the field that has the command's name."""
    return request.get(request.name.encode())


def _address(client: ClientConnection) -> dict[str, Any]:
    address = client.peer_address
    return {"unix": client.peer} if address is None else {"ip": address[0], "port": address[1]}


def _create(request: Request) -> Iterator[Event]:
    view = {name: value for name in ("viewOn", "pipeline") if (value := request.get(name.encode())) is not None}
    yield "createCollection", {"ns": request_namespace(request), **view}


def _create_indexes(request: Request) -> Iterator[Event]:
    for index in request.get(b"indexes") or ():
        if isinstance(index, Mapping):
            namespace = request_namespace(request)
            yield "createIndex", {"ns": namespace, "indexName": index.get("name"), "indexSpec": dict(index)}


def _drop_indexes(request: Request) -> Iterator[Event]:
    named = request.get(b"index")
    for index in named if isinstance(named, list) else [named]:
        yield "dropIndex", {"ns": request_namespace(request), "indexName": index}


def _shard_collection(request: Request) -> Iterator[Event]:
    options = {"unique": bool(request.get(b"unique"))}
    yield "shardCollection", {"ns": _first(request), "key": request.get(b"key"), "options": options}


def _add_shard(request: Request) -> Iterator[Event]:
    yield "addShard", {"shard": request.get(b"name"), "connectionString": _first(request)}


_LOG_INS: Final = frozenset({"authenticate", "saslContinue", "saslStart"})

_SUBJECTS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("createUser", "updateUser", "dropUser", "grantRolesToUser", "revokeRolesFromUser"), "user"),
    **dict.fromkeys(("createRole", "updateRole", "dropRole", "grantRolesToRole", "revokeRolesFromRole"), "role"),
    **dict.fromkeys(("grantPrivilegesToRole", "revokePrivilegesFromRole"), "role"),
}
"""What the first field of a command names."""

_SAME_NAME: Final[Mapping[str, tuple[str, ...]]] = {
    **dict.fromkeys(("createUser", "updateUser"), ("customData", "roles")),
    **dict.fromkeys(("grantRolesToUser", "revokeRolesFromUser", "grantRolesToRole", "revokeRolesFromRole"), ("roles",)),
    **dict.fromkeys(("createRole", "updateRole"), ("roles", "privileges")),
    **dict.fromkeys(("grantPrivilegesToRole", "revokePrivilegesFromRole"), ("privileges",)),
    **dict.fromkeys(("dropUser", "dropAllUsersFromDatabase", "dropRole", "dropAllRolesFromDatabase"), ()),
}
"""Events about users and roles, which have the name of their command, with the fields that are recorded."""

_EVENTS: Final[Mapping[str, Callable[[Request], Iterator[Event]]]] = {
    "create": _create,
    "drop": lambda request: iter([("dropCollection", {"ns": request_namespace(request)})]),
    "dropDatabase": lambda request: iter([("dropDatabase", {"ns": request.db})]),
    "createIndexes": _create_indexes,
    "dropIndexes": _drop_indexes,
    "renameCollection": lambda request: iter(
        [("renameCollection", {"old": _first(request), "new": request.get(b"to")})]
    ),
    "enableSharding": lambda request: iter([("enableSharding", {"ns": _first(request)})]),
    "shardCollection": _shard_collection,
    "refineCollectionShardKey": lambda request: iter(
        [("refineCollectionShardKey", {"ns": _first(request), "key": request.get(b"key")})]
    ),
    "addShard": _add_shard,
    "removeShard": lambda request: iter([("removeShard", {"shard": _first(request)})]),
    "shutdown": lambda _: iter([("shutdown", {})]),
    "logApplicationMessage": lambda request: iter([("applicationMessage", {"msg": _first(request)})]),
}
