"""From a client's request to the handler of its command, and back.

What all commands have in common before and around their handlers is in `command_stages`. Errors, gossip, metrics, the
audit log and the log of slow operations are here, because every operation has them.
"""

import math
from time import perf_counter
from typing import TYPE_CHECKING, Final

from shardwright.daemon.fail_command import FailCommandError
from shardwright.daemon.operation_metrics import (
    OK,
    UNKNOWN_COMMAND,
    outcome_of_failure,
    outcome_of_reply,
    outcome_of_success,
    reports_write_errors,
)
from shardwright.router.access.login import Login
from shardwright.router.audit import RouterAudit
from shardwright.router.command_stages import AROUND, STAGES, ComposedCommands
from shardwright.router.context.query_shapes import COUNTED
from shardwright.router.context.router_context import RouterContext
from shardwright.router.operations.begun_operation import BegunOperation
from shardwright.router.operations.operation import Operation, RouterCommand
from shardwright.router.passages import RouterPassages
from shardwright.router.replies.reply_builder import signed
from shardwright.router.slow_log import SlowLog
from shardwright.router.transactions.transaction_rules import ENDING
from shardwright.sharding.transaction_protocol import AUTOCOMMIT, label_transient
from shardwright.wire.cursor_batch import documents_returned
from shardwright.wire.error_codes import Category, ErrorCode, has_category
from shardwright.wire.errors import RETRYABLE_WRITE_ERROR, CommandError
from shardwright.wire.hello import HELLO_NAMES
from shardwright.wire.request import Request
from shardwright.wire.request_validation import error_of_request
from shardwright.wire.transport.client_connection import ClientConnection
from shardwright.wire.transport.reactor import may_run_in_reactor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardwright.wire.transport.pool import Asked

_WAITING: Final = frozenset({*HELLO_NAMES, "getMore"})
"""Commands that may be slow because their clients asked to wait."""


_UNCOUNTED: Final = frozenset({ErrorCode.OK, ErrorCode.Unauthorized})
"""Results of operations that count by shape only if a shard received them or they returned documents.

Otherwise clients could fill the shapes with arbitrary names before they log in.
"""


class Dispatcher:
    """Handles the requests of all clients of a router (see `wire.transport.server.Handler`).

    Attributes:
        slow_log: the log of slow operations.
        passages: what was learned of operations that were merely passed on.
    """

    def __init__(self, context: RouterContext) -> None:
        self._context = context
        self.slow_log = SlowLog(context)
        log = context.options.audit
        self._audit = None if log is None else RouterAudit(log, context.log_ins)
        self.passages = self._new_passages(context, is_audited=log is not None)
        self._composed = ComposedCommands(context, STAGES, AROUND, self.passages.may_learn)
        self._stale_version_retries = context.metrics.counter(
            "stale_version_retries", "Operations repeated because a shard rejected the routing versions sent with them"
        )

    def _new_passages(self, context: RouterContext, *, is_audited: bool) -> RouterPassages:
        return RouterPassages(context, is_audited=is_audited)

    @may_run_in_reactor
    async def handle(self, client: ClientConnection, request: Request) -> bytes | None:
        """Run one command.

        Raises:
            CommandError: it failed.
        """
        context = self._context
        begun, client.begun = client.begun, None
        asked: Sequence[Asked] = ()
        if begun is None:
            operation = Operation(context, client, request)
        else:
            assert isinstance(begun, BegunOperation)
            operation, asked = begun.take_over(request)
        client.state = operation
        command: RouterCommand | None = context.commands.find(request.name)
        outcome, code, answer = OK, 0, None
        try:
            if command is None:
                raise CommandError(ErrorCode.CommandNotFound, f"no such cmd: {request.name}")
            composed = self._composed.of(command, request.fields, is_begun=begun is not None)
            for run in composed.stages:
                waiting = run(operation, command)
                if waiting is not None and (final := await waiting) is not None:
                    return final
            result = await composed.handler(operation)
            context.target_counts.note(command.name, operation.targeted, operation.table)
            if client.is_disconnected:
                outcome = outcome_of_success(client, request)
            if isinstance(result, bytes):
                answer = result
                if composed.may_be_learned and operation.passed_on is not None:
                    self.passages.learn(operation, command, operation.passed_on)
                return signed(result, context.signer)
            if result is not None:
                answer = operation.framed(result)
            return answer
        except Exception as failure:
            error = error_of_request(failure, operation.request)
            if error is None:
                outcome, code = outcome_of_failure(failure, client), ErrorCode.InternalError
                raise
            outcome, code = error.code_name, error.code
            _label(operation, error)
            return operation.framed(error.reply())
        except BaseException as failure:
            outcome, code = outcome_of_failure(failure, client), ErrorCode.Interrupted
            if client.interruption is not None:
                code = client.interruption.code
            raise
        finally:
            client.state = None
            for each in asked:
                if not each.is_over:
                    each.give_up()
            if client.deadline < math.inf:
                context.deadlines.clear(client)
            self._record(operation, command, outcome, code, answer)

    def _record(
        self, operation: Operation, command: RouterCommand | None, outcome: str, code: int, answer: bytes | None
    ) -> float:
        """Write an operation that has ended into the audit log, the metrics and the slow log; return its duration."""
        context = self._context
        if self._audit is not None and command is not None:
            self._audit.note(operation, command.name, code)
        seconds = perf_counter() - operation.started
        has_write_errors = False
        if outcome == OK:
            outcome, code = outcome_of_reply(answer)  # a shard's error is passed on as it came
            has_write_errors = outcome != OK and reports_write_errors(answer)
        if operation.retries:
            self._stale_version_retries.add(operation.retries)
        if operation.awaited_routing:
            context.routing.statistics.operations_that_waited[operation.request.name] += 1
        name = UNKNOWN_COMMAND if command is None else command.name
        context.metrics.operations.observe(name, outcome, seconds, has_write_errors=has_write_errors)
        if name in COUNTED:
            reply_bytes = documents = 0
            if outcome == OK and answer is not None:
                reply_bytes, documents = len(answer), documents_returned(answer)
            elif outcome == OK and operation.relayed is not None:
                reply_bytes, documents = operation.relayed.frame_bytes, operation.relayed.documents
            if operation.targeted or documents or code not in _UNCOUNTED:
                context.query_shapes.observe(
                    operation.origin, seconds, operation.targeted, reply_bytes, documents, is_error=outcome != OK
                )
        if seconds * 1000 >= context.slow_operations.considered_ms and command is not None:
            self.slow_log.consider(operation, outcome, seconds, answer, waits=name in _WAITING)
        return seconds

    def connection_opened(self, client: ClientConnection) -> None:
        """A client has connected and not authenticated yet."""
        client.login = Login(client.log_in_changed)
        if self._context.access is not None:
            client.permit = None
        if self._audit is not None:
            self._audit.note_arrived(client)

    def connection_closed(self, client: ClientConnection) -> None:
        """A client has gone."""
        self._context.deadlines.forget(client)
        if self._audit is not None:
            self._audit.note_gone(client)


def _label(operation: Operation, error: CommandError) -> None:
    """Label what drivers may retry: writes, the ends of transactions, or whole transactions."""
    has_given_labels = isinstance(error, FailCommandError) and error.has_given_labels
    if AUTOCOMMIT in operation.request.fields and not has_given_labels:
        label_transient(error, is_ending=operation.request.name in ENDING)
    is_ending = AUTOCOMMIT in operation.request.fields and operation.request.name in ENDING
    if (
        (operation.is_retryable_write or is_ending)
        and RETRYABLE_WRITE_ERROR not in error.labels
        and not isinstance(error, FailCommandError)
        and has_category(error.code, Category.RETRYABLE)
    ):
        error.labels = (*error.labels, RETRYABLE_WRITE_ERROR)
