"""The request handling common to all sidecars: the connection to the mongod, metrics, logging and spans.

Sidecar and mongod both execute ``logRotate`` and ``rotateCertificates``, because clients see them as one server.

With tracing (`TracedHandler`), an operation and each of its requests to the mongod have a span. Only operations whose
router or client names a trace are traced.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from time import perf_counter
from typing import Any, Final

import trio

from shardwright.daemon.audit_log import AuditLog
from shardwright.daemon.certificates import ROTATE_CERTIFICATES, rotate_certificates
from shardwright.daemon.logs import AUDIT, DaemonLogs
from shardwright.daemon.metrics import Metrics
from shardwright.daemon.operation_metrics import (
    HOST_UNREACHABLE,
    OK,
    outcome_of_failure,
    outcome_of_reply,
    outcome_of_success,
)
from shardwright.daemon.query_shape import slow_fields
from shardwright.daemon.sidecar.access import SidecarAccess, may_log_in
from shardwright.daemon.sidecar.audit import SidecarAudit
from shardwright.daemon.sidecar.client_authentication import (
    AUTHENTICATE,
    Guesses,
    log_in_member,
    without_any_certificate,
)
from shardwright.daemon.sidecar.mongod import LocalMongod, Upstream
from shardwright.daemon.sidecar.sidecar import Sidecar
from shardwright.daemon.sidecar.term_fence import BODY_ELEMENTS_AT, FAILED
from shardwright.daemon.tracing import OperationSpan, Tracing, operation_attributes
from shardwright.daemon.users import SYSTEM, refuse_reserved_session, with_owner_of_session
from shardwright.wire.error_codes import Category, ErrorCode, has_category
from shardwright.wire.errors import RETRYABLE_WRITE_ERROR, BackendError, CommandError
from shardwright.wire.hello import HELLO_NAMES
from shardwright.wire.logger import Logger, get_logger
from shardwright.wire.message import OpMsg, reply_document
from shardwright.wire.rawbson import is_string
from shardwright.wire.request import RETRYABLE_WRITES, Request
from shardwright.wire.request_validation import error_of_request
from shardwright.wire.tls import ProcessTls
from shardwright.wire.trace_context import TRACE_CONTEXT, client_trace, router_trace
from shardwright.wire.transport.client import Begun, decode_reply
from shardwright.wire.transport.client_connection import ClientConnection
from shardwright.wire.transport.reactor import in_own_task, may_run_in_reactor

logger = get_logger("daemon.tls")

_WAITING: Final = frozenset({*HELLO_NAMES, "getMore"})
"""Commands that may wait because their client asked them to."""

_READS: Final = frozenset({*HELLO_NAMES, "count", "distinct", "find", "getMore"})
"""Commands whose replies do not acknowledge a write."""

_LOG_ROTATE: Final = "logRotate"

ROTATIONS: Final = frozenset({_LOG_ROTATE, ROTATE_CERTIFICATES})
"""The commands."""

_OF_ERRORS: Final = frozenset({"errmsg", "code", "codeName"})


class SidecarHandler(ABC):
    """Handles the requests of all clients of a sidecar (see `wire.transport.server.Handler`).

    Args:
        sidecar: opens the connections to the mongod.
        metrics: counts the operations.
        slow_ms: operations that take longer are logged.
        logger: logs them.
        access: decides who may send what; used only under access control.
        logs: the logs of this process.
        audit: where to write what users do; None if nothing is audited.

    Attributes:
        logs: the daemon's logs.
        slow_seconds: operations that take longer are logged.
    """

    def __init__(
        self,
        sidecar: Sidecar,
        metrics: Metrics,
        slow_ms: float,
        logger: Logger,
        access: SidecarAccess,
        logs: DaemonLogs,
        audit: AuditLog | None = None,
    ) -> None:
        self._sidecar = sidecar
        self._observe = metrics.operations.observe
        self.slow_seconds = slow_ms / 1000
        self._logger = logger
        self._cluster_auth = cluster_auth = sidecar.transport.cluster_auth
        self._access = access if cluster_auth.is_on else None
        self._guesses = Guesses()
        self.logs = logs
        self._audit = None if audit is None else SidecarAudit(audit, self.namespace_of)

    def connection_opened(self, client: ClientConnection) -> None:
        """A client has connected."""
        client.state = self._sidecar.open_upstream(client)
        if self._access is not None:
            client.permit = None
        if self._audit is not None:
            self._audit.note_opened(client)

    def connection_closed(self, client: ClientConnection) -> None:
        """A client has disconnected; close its connection to the mongod too."""
        client.state.close()
        if self._audit is not None:
            self._audit.note_closed(client, client.state)

    @may_run_in_reactor
    async def handle(self, client: ClientConnection, request: Request) -> bytes | None:
        """Answer one request.

        Raises:
            CommandError: it failed before it was sent to the mongod.
        """
        begun, client.begun = client.begun, None
        started = perf_counter()
        outcome, reply = OK, None
        try:
            if begun is not None:
                started = begun.started
                reply = await self.take_over(client, client.state, request, begun)
            elif self._access is None:
                refuse_reserved_session(request)
                if may_log_in(request):
                    request = without_any_certificate(request)
                reply = await self.dispatch(client, client.state, request)
            else:
                reply = await self._controlled(self._access, client, client.state, request)
            outcome, _ = outcome_of_reply(reply)
            if outcome == OK and client.is_disconnected:
                outcome = outcome_of_success(client, request)
            if reply is not None and request.name not in _READS:
                self._sidecar.note_reply(reply)
            return reply
        except BackendError:
            # The client must see its connection broken, as if the mongod itself were gone.
            outcome = HOST_UNREACHABLE
            client.is_finished = True
            return None
        except Exception as failure:
            error = error_of_request(failure, request)
            outcome = outcome_of_failure(error or failure, client)
            if error is not None:
                label_retryable_write(error, request)
            if error is None or error is failure:
                raise
            raise error from failure
        except BaseException as failure:
            outcome = outcome_of_failure(failure, client)
            raise
        finally:
            seconds = perf_counter() - started
            self._observe(request.name, outcome, seconds)
            if seconds >= self.slow_seconds and request.name not in _WAITING:
                self._log_slow(client, request, outcome, seconds, reply)

    @may_run_in_reactor
    async def _controlled(
        self, access: SidecarAccess, client: ClientConnection, upstream: Upstream, request: Request
    ) -> bytes | None:
        """As `dispatch`, under access control."""
        if access.is_internal(upstream) and not may_log_in(request):
            refuse_reserved_session(request)
            return await self.dispatch(client, upstream, with_owner_of_session(request, SYSTEM))
        await in_own_task()
        answer = partial(self._answer_user, access, client, upstream, request)
        if self._audit is None:
            return await answer()
        return await self._audit.record(client, upstream, request, answer)

    async def _answer_user(
        self, access: SidecarAccess, client: ClientConnection, upstream: Upstream, request: Request
    ) -> bytes | None:
        """Answer a client who is not a part of the cluster, or is about to log in."""
        refuse_reserved_session(request)
        admitted = await access.admit(upstream, request)
        if request.name == AUTHENTICATE:
            return await self._log_in_member(access, client, upstream, request)
        if may_log_in(request):
            await self._guesses.wait(client, upstream, admitted)
        if upstream.user is None and request.name not in HELLO_NAMES:
            # The mongod knows what may be run without a log-in; the daemon does nothing for such a client.
            reply = await upstream.forward(admitted.message.frame, admitted.message.flags)
        else:
            reply = await self.dispatch(client, upstream, admitted)
            if reply is not None:
                reply = await access.with_signed_times(upstream, admitted, reply)
        has_failed = False
        if reply is not None and reply.startswith(FAILED, BODY_ELEMENTS_AT):
            has_failed, reply = True, access.as_sent(request, reply)
        if may_log_in(request):
            # A step that wants no answer counts as a failure, or guesses would be free that way.
            has_failed = has_failed or (reply is None and request.name not in HELLO_NAMES)
            if has_failed:
                client.log_in_failed()
            self._guesses.note(client, upstream, request, has_failed=has_failed)
            await access.learn_user(upstream)
        return reply

    async def _log_in_member(
        self, access: SidecarAccess, client: ClientConnection, upstream: Upstream, request: Request
    ) -> bytes:
        try:
            reply = await log_in_member(self._cluster_auth, client, upstream, request)
        except CommandError:
            client.log_in_failed()
            await access.learn_user(upstream)  # the mongod may hold a log-in to be complete that the daemon broke off
            raise
        await access.learn_user(upstream, has_certificate=True)
        return reply

    @may_run_in_reactor
    async def take_over(
        self, client: ClientConnection, upstream: Upstream, request: Request, begun: Begun
    ) -> bytes | None:
        """Answer a request whose operation one of the daemon's passages has begun.

        Raises:
            CommandError: as `dispatch`.
            BackendError: as `dispatch`.
        """
        raise NotImplementedError("a daemon without passages")

    @abstractmethod
    @may_run_in_reactor
    async def dispatch(self, client: ClientConnection, upstream: Upstream, request: Request) -> bytes | None:
        """Determine the kind of a request and answer it.

        Raises:
            CommandError: it failed before it was sent to the mongod.
            BackendError: the mongod is gone.
        """

    @abstractmethod
    def namespace_of(self, request: Request) -> str:
        """The namespace of a request, for the log."""

    def _log_slow(
        self, client: ClientConnection, request: Request, outcome: str, seconds: float, reply: bytes | None
    ) -> None:
        user = client.state.user
        self._logger.info(
            "Slow operation",
            **slow_fields(client, request, reply, seconds, "" if user is None else user.full_name),
            namespace=self.namespace_of(request),
            outcome=outcome,
        )


async def rotate_both(tls: ProcessTls, upstream: Upstream, request: Request, logs: DaemonLogs) -> bytes | None:
    """Execute one of the `ROTATIONS` on the mongod, which checks it, then on the daemon; return the mongod's reply.

    Without a reply the client's privilege is unknown, and the daemon does nothing.

    Raises:
        CommandError: FileRenameFailed or InvalidSSLConfiguration, the daemon's part failed; the mongod's is done.
        BackendError: the mongod is gone.
    """
    reply = await upstream.forward(request.message.frame, request.message.flags)
    if reply is None:
        return None
    answer = decode_reply(reply)
    named = request.get(_LOG_ROTATE.encode())
    if _has_no_audit_log(answer, named) and AUDIT in logs.kinds:
        answer = {name: value for name, value in answer.items() if name not in _OF_ERRORS} | {"ok": 1.0}
        reply = reply_document(request.message.request_id, answer)
    if answer["ok"]:
        if request.name == ROTATE_CERTIFICATES:
            rotate_certificates(tls)
        elif not is_string(named) or named in logs.kinds:
            logs.rotate_for_client(named if is_string(named) else None)
    return reply


async def rotate_certificates_of_both(mongod: LocalMongod, message: str) -> None:
    """Reload the certificates of the mongod, then of the daemon, after a signal, which only the daemon receives.

    An unreachable mongod reads them when it starts, and one without TLS has nothing to read.

    Args:
        message: for the logs of both.

    Raises:
        CommandError: InvalidSSLConfiguration, one of the two cannot use a file. If it is the mongod, the daemon keeps
            its certificates too.
    """
    try:
        with trio.fail_after(mongod.transport.timeouts.hello_seconds):
            await mongod.pool.command("admin", {ROTATE_CERTIFICATES: 1, "message": message})
    except (BackendError, CommandError, trio.TooSlowError) as error:
        logger.error("The mongod did not rotate its certificates", error=str(error) or "it does not answer")
        if isinstance(error, CommandError) and error.code == ErrorCode.InvalidSSLConfiguration:
            raise
    rotate_certificates(mongod.transport.tls, message)


def _has_no_audit_log(answer: Mapping[str, Any], named: Any) -> bool:  # noqa: ANN401 - whatever a client sent
    """Whether the mongod refused only because it has no audit log, so that the client has the privilege."""
    return named == AUDIT and answer.get("code") == ErrorCode.NoSuchKey


def label_retryable_write(error: CommandError, request: Request) -> None:
    """Label the error of a retryable write that a driver may send again, as mongod does (``ErrorLabelBuilder``).

    Routers return a shard's reply to the client unchanged, so it needs the label already.
    """
    fields = request.fields
    if request.name not in RETRYABLE_WRITES or b"txnNumber" not in fields or b"autocommit" in fields:
        return
    if RETRYABLE_WRITE_ERROR not in error.labels and has_category(error.code, Category.RETRYABLE):
        error.labels = (*error.labels, RETRYABLE_WRITE_ERROR)


class TracedHandler(SidecarHandler):
    """The handler of a sidecar with tracing, to be combined with the sidecar's own.

    Attributes:
        tracing: set by the sidecar.
    """

    tracing: Tracing

    @may_run_in_reactor
    async def handle(self, client: ClientConnection, request: Request) -> bytes | None:
        """Answer one request, in a span if it is traced; the mongod does not receive the field with the trace.

        Clients that have to log in cause no spans before that. Users name their trace in a comment. If they send the
        field, it is kept, so that access control refuses the request.
        """
        if client.begun is not None:
            return await super().handle(client, request)
        access = self._access
        may_trace = access is None or client.state.user is not None
        parent = client_trace(request) if may_trace else None
        if TRACE_CONTEXT in request.fields and (access is None or access.is_internal(client.state)):
            parent = router_trace(request) or parent
            request = request.without((TRACE_CONTEXT,))
        if parent is None or not parent.is_sampled:
            return await super().handle(client, request)
        started, namespace = perf_counter(), self.namespace_of(request)
        collection = namespace.removeprefix(f"{request.db}.") if "." in namespace else None
        attributes = operation_attributes(request.name, request.db, collection)
        client.trace = span = self.tracing.begin(f"{request.name} {namespace}", attributes, parent)
        outcome, code = OK, 0
        try:
            reply = await super().handle(client, request)
            outcome, code = outcome_of_reply(reply)
            return reply
        except BaseException as failure:
            outcome = outcome_of_failure(failure, client)
            code = failure.code if isinstance(failure, CommandError) else 0
            raise
        finally:
            client.trace = None
            span.end(outcome, code)
            self.tracing.note_duration(request.name, perf_counter() - started, span)


class TracedUpstream(Upstream):
    """A client's connection to the mongod; requests of traced operations have spans."""

    __slots__ = ()

    @may_run_in_reactor
    async def pass_on(self, frame: bytes, flags: int, may_begin: Callable[[], bool] | None = None) -> bytes | None:
        """Forward a request, see `Upstream.pass_on`."""
        span = self._begin(frame)
        if span is None:
            return await super().pass_on(frame, flags, may_begin)
        reply, outcome = None, OK
        try:
            reply = await super().pass_on(frame, flags, may_begin)
        except BaseException as failure:
            outcome = outcome_of_failure(failure, self._client)
            raise
        finally:
            self._end(span, reply, outcome)
        return reply

    @may_run_in_reactor
    async def forward(self, frame: bytes, flags: int) -> bytes | None:
        """Send a client's request to the mongod, see `Upstream.forward`."""
        span = self._begin(frame)
        if span is None:
            return await super().forward(frame, flags)
        reply, outcome = None, OK
        try:
            reply = await super().forward(frame, flags)
        except BaseException as failure:
            outcome = outcome_of_failure(failure, self._client)
            raise
        finally:
            self._end(span, reply, outcome)
        return reply

    def _begin(self, frame: bytes) -> tuple[OperationSpan, OperationSpan] | None:
        """Begin the span of a request; return it with the operation's, which is hidden until `_end`.

        `Upstream.pass_on` may call `forward`, and this is one request.
        """
        operation = self._client.trace
        if not isinstance(operation, OperationSpan):
            return None
        self._client.trace = None
        command = Request(OpMsg(frame)).name
        attributes = {"db.system.name": "mongodb", "db.operation.name": command}
        span = operation.request(f"{command} mongod", {**attributes, "server.address": str(self._mongod.socket_path)})
        return span, operation

    def _end(self, spans: tuple[OperationSpan, OperationSpan], reply: bytes | None, outcome: str) -> None:
        span, self._client.trace = spans
        span.end(*(outcome_of_reply(reply) if outcome == OK else (outcome, 0)))
