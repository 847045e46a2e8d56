"""The request handling common to all sidecars: the connection to the mongod, metrics and logging."""

from abc import ABC, abstractmethod
from functools import partial
from time import perf_counter
from typing import Final

from shardwright.daemon.audit.log import AuditLog
from shardwright.daemon.log_rotation import DaemonLogs
from shardwright.daemon.metrics import Metrics
from shardwright.daemon.operation_metrics import HOST_UNREACHABLE, OK, outcome_of_failure, outcome_of_success
from shardwright.daemon.reserved_session_ids import refuse_reserved_session
from shardwright.daemon.retryable_errors import label_retryable_write
from shardwright.daemon.sidecar.access import SidecarAccess, may_log_in
from shardwright.daemon.sidecar.audit import SidecarAudit
from shardwright.daemon.sidecar.guesses import Guesses
from shardwright.daemon.sidecar.member_login import AUTHENTICATE, log_in_member, without_any_certificate
from shardwright.daemon.sidecar.reply_term import BODY_ELEMENTS_AT, FAILED
from shardwright.daemon.sidecar.sidecar import Sidecar
from shardwright.daemon.sidecar.upstream import Upstream
from shardwright.daemon.slow_line import slow_fields
from shardwright.daemon.user_names import SYSTEM, with_owner_of_session
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.hello import HELLO_NAMES
from shardwright.wire.logger import Logger
from shardwright.wire.rawbson import decode_document
from shardwright.wire.request import Request
from shardwright.wire.transport.client import Begun
from shardwright.wire.transport.client_connection import ClientConnection
from shardwright.wire.transport.cluster_auth import CLUSTER_AUTH
from shardwright.wire.transport.request_loop import in_own_task, may_run_in_reactor
from shardwright.wire.well_formed import error_of_request

_WAITING: Final = frozenset({*HELLO_NAMES, "getMore"})
"""Commands that may wait because their client asked them to."""

_READS: Final = frozenset({*HELLO_NAMES, "count", "distinct", "find", "getMore"})
"""Commands whose replies do not acknowledge a write."""


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
        self._access = access if CLUSTER_AUTH.is_on else None
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
            if reply is not None and reply.startswith(FAILED, BODY_ELEMENTS_AT):
                outcome = _code_name(reply)
            elif client.is_disconnected:
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
            reply = await log_in_member(client, upstream, request)
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


def _code_name(reply: bytes) -> str:
    document = decode_document(reply[21:])
    return str(document.get("codeName", document.get("code", "unknown")))
