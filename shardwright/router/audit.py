"""The audit log of a router: client commands and log-ins.

Shards do not audit these commands again, because a router is a part of the cluster to them.
"""

from collections.abc import Iterator
from typing import Any, Final

from shardwright.daemon.audit_events import (
    AUTHENTICATE,
    DISCONNECTED,
    LOGOUT,
    Event,
    certificate_log_in,
    events_of,
    explicit_log_out,
    is_event,
    log_in,
    log_out,
)
from shardwright.daemon.audit_log import AuditedConnections, AuditLog
from shardwright.router.access.access_control import AccessControl
from shardwright.router.access.login import Login
from shardwright.router.operations.local_operations import request_namespace
from shardwright.router.operations.operation import Operation
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.request import Request
from shardwright.wire.transport.client_connection import ClientConnection

_LOG_INS: Final = frozenset({AUTHENTICATE, "saslContinue", "saslStart"})


class RouterAudit:
    """Audit log writer of one router process; ``log_ins`` has the users' roles."""

    def __init__(self, log: AuditLog, log_ins: AccessControl) -> None:
        self._log = log
        self._log_ins = log_ins
        self._connections = AuditedConnections()

    def note(self, operation: Operation, name: str, code: int) -> None:
        """Write the events of an operation that has ended.

        Args:
            name: the command, without aliases.
            code: the error code, 0 on success.
        """
        for kind, parameters in _events(operation, name, code):
            self._log.write(kind, parameters, code, self._participants(operation.client))

    def note_arrived(self, client: ClientConnection) -> None:
        """Register a new client connection."""
        self._connections.note_opened(client)

    def note_gone(self, client: ClientConnection) -> None:
        """Write the disconnection of a logged-in client."""
        login: Login = client.login
        if login.user is not None:
            self._log.write(*log_out(login.user, DISCONNECTED), 0, self._participants(client))
        self._connections.note_closed(client)

    def _participants(self, client: ClientConnection) -> dict[str, Any]:
        login: Login = client.login
        name = login.user
        user = None if name is None else self._log_ins.users.fresh(name)
        roles = [] if user is None else [{"role": each["role"], "db": each["db"]} for each in user.role_documents]
        return {
            **self._connections.describe(client),
            "users": [] if name is None else [name.to_document()],
            "roles": roles,
        }


def _events(operation: Operation, name: str, code: int) -> Iterator[Event]:
    request = operation.request
    login: Login = operation.client.login
    if name in _LOG_INS and code != ErrorCode.Unauthorized:
        yield from _log_in(login, operation.client, request, code)
    elif name == LOGOUT and code != ErrorCode.Unauthorized:
        if login.previous is not None:
            previous, login.previous = login.previous, None
            yield explicit_log_out(previous, request.db)
    elif is_event(request, name, code):
        yield from events_of(request, name, code, request_namespace(request))


def _log_in(login: Login, client: ClientConnection, request: Request, code: int) -> Iterator[Event]:
    """Yield the event that ends a log-in; earlier steps of the conversation are not events."""
    attempt = login.attempt
    if request.name == AUTHENTICATE:
        yield certificate_log_in(request, client.certificate_subject)
    elif attempt is not None and (code or login.conversation is None):
        login.attempt = None
        yield log_in(*attempt)
