"""The audit log of a sidecar: operations of users who connect to it, and log-in attempts.

Operations of cluster members are not recorded here, because they act for users of routers, which have audit logs. Of
members, only a failed log-in is an event.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from shardwright.daemon.audit_events import (
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
from shardwright.daemon.sidecar.access import may_log_in
from shardwright.daemon.sidecar.client_authentication import AUTHENTICATE, SASL_CONTINUE, SASL_START, Attempt
from shardwright.daemon.sidecar.mongod import Upstream
from shardwright.daemon.sidecar.term_fence import has_failed
from shardwright.daemon.users import UserName
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import BackendError
from shardwright.wire.request import Request
from shardwright.wire.request_validation import error_of_request
from shardwright.wire.transport.client import decode_reply
from shardwright.wire.transport.client_connection import ClientConnection

_ALIASES: Final[Mapping[str, str]] = {"deleteIndexes": "dropIndexes", "findandmodify": "findAndModify"}
_SHUTDOWN: Final = "shutdown"


@dataclass(slots=True)
class _Exchange:
    """A request and its outcome.

    Attributes:
        before: the user before the command.
        code: its error code, 0 if it has succeeded.
    """

    client: ClientConnection
    upstream: Upstream
    request: Request
    before: UserName | None
    reply: bytes | None = None
    code: int = ErrorCode.Interrupted

    def note_reply(self, reply: bytes | None) -> None:
        """Record the outcome. A proof without a reply has failed unless it has changed the user."""
        self.reply = reply
        if reply is None and self.request.name == SASL_CONTINUE and self.upstream.user == self.before:
            self.code = ErrorCode.AuthenticationFailed
        else:
            self.code = int(decode_reply(reply).get("code", 0)) if reply is not None and has_failed(reply) else 0

    def ends_conversation(self) -> bool:
        """Whether this was the last step of a SCRAM log-in, including any failed step."""
        if self.request.name == SASL_START:
            return self.code != 0
        if self.request.name != SASL_CONTINUE:
            return False
        return self.code != 0 or self.reply is None or bool(decode_reply(self.reply).get("done"))


class SidecarAudit:
    """The audit of one sidecar under access control."""

    def __init__(self, log: AuditLog, namespace_of: Callable[[Request], str]) -> None:
        self._log = log
        self._namespace_of = namespace_of
        self._connections = AuditedConnections()
        self._attempts: dict[int, Attempt] = {}

    async def record(
        self,
        client: ClientConnection,
        upstream: Upstream,
        request: Request,
        answer: Callable[[], Awaitable[bytes | None]],
    ) -> bytes | None:
        """Answer a request and write its events; return the reply.

        Args:
            client: the sender: a user, or a client that may be about to log in.
            answer: answers it. Its exceptions are propagated.
        """
        exchange = _Exchange(client, upstream, request, before=upstream.user)
        try:
            self._note_attempt(client, request)
            reply = await answer()
            exchange.note_reply(reply)
            return reply
        except BackendError:
            # A mongod that shuts down does not answer.
            exchange.code = 0 if request.name == _SHUTDOWN else ErrorCode.HostUnreachable
            raise
        except Exception as failure:
            error = error_of_request(failure, request)
            exchange.code = ErrorCode.InternalError if error is None else error.code
            raise
        finally:
            self._write(exchange)

    def note_opened(self, client: ClientConnection) -> None:
        """Record a new client."""
        self._connections.note_opened(client)

    def note_closed(self, client: ClientConnection, upstream: Upstream) -> None:
        """Write an event if a user disconnects without a log-out."""
        user = upstream.user
        if user is not None and not user.is_internal:
            self._log.write(*log_out(user, DISCONNECTED), 0, self._participants(client, upstream))
        self._attempts.pop(client.id, None)
        self._connections.note_closed(client)

    def _note_attempt(self, client: ClientConnection, request: Request) -> None:
        attempt = Attempt.of(request)
        if attempt is not None:
            self._attempts[client.id] = attempt

    def _write(self, exchange: _Exchange) -> None:
        for kind, parameters in self._events(exchange):
            participants = self._participants(exchange.client, exchange.upstream)
            self._log.write(kind, parameters, int(exchange.code), participants)

    def _events(self, exchange: _Exchange) -> Iterable[Event]:
        request = exchange.request
        if exchange.code != ErrorCode.Unauthorized and may_log_in(request):
            return self._log_ins(exchange)
        name = _ALIASES.get(request.name, request.name)
        if not is_event(request, name, exchange.code):
            return ()
        return events_of(request, name, exchange.code, self._namespace_of(request))

    def _log_ins(self, exchange: _Exchange) -> Iterator[Event]:
        """Yield the event of a completed log-in or a log-out; the steps before are not events."""
        request, before, present = exchange.request, exchange.before, exchange.upstream.user
        if request.name == AUTHENTICATE:
            if exchange.code:  # otherwise it was a member
                yield certificate_log_in(request, exchange.client.certificate_subject)
        elif request.name == LOGOUT:
            if before is not None and not before.is_internal and present is None:
                yield explicit_log_out(before, request.db)
        elif exchange.ends_conversation():
            attempt = self._attempts.pop(exchange.client.id, None)
            is_of_member = not exchange.code and present is not None and present.is_internal
            if attempt is not None and not is_of_member:
                yield log_in(attempt.user or UserName("", attempt.db), attempt.mechanism)

    def _participants(self, client: ClientConnection, upstream: Upstream) -> dict[str, Any]:
        user = upstream.user
        return {
            **self._connections.describe(client),
            "users": [] if user is None else [user.to_document()],
            "roles": [dict(role) for role in upstream.roles],
        }
