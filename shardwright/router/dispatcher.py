"""From a client's request to the handler of its command, and back: what all commands have in common.

Deadlines, errors, gossip, metrics and the log of slow operations are here, so that no handler repeats them.
"""

import math
from functools import partial
from time import perf_counter

import bson

from shardwright.daemon.fail_command import FailCommandError
from shardwright.daemon.operation_metrics import OK, outcome_of_failure, outcome_of_success
from shardwright.router.access.login import Login
from shardwright.router.audit import RouterAudit
from shardwright.router.commands.list_commands import asks_for_help, help_for
from shardwright.router.concerns import CHECKED_BY_SHARDS, READ_CONCERN, check_read_concern, with_default_concerns
from shardwright.router.context.router_context import RouterContext
from shardwright.router.fail_command import under_fail_command
from shardwright.router.operations.begun_operation import BegunOperation
from shardwright.router.operations.listed_collection import COLLECTION_UUID, naming_actual_collection
from shardwright.router.operations.operation import Operation
from shardwright.router.operations.router_command import CommandHandler, RouterCommand
from shardwright.router.passages import RouterPassages
from shardwright.router.pipelines.commands import SESSION
from shardwright.router.processes.session_owner import relayed_to_owner
from shardwright.router.replies.reply_builder import Reply
from shardwright.router.replies.reply_tail import signed
from shardwright.router.session_use import use_session
from shardwright.router.slow_log import SlowLog
from shardwright.router.stable_api import check_api_arguments, require_api_version
from shardwright.router.transaction_execution import in_transaction
from shardwright.router.transactions.transaction_rules import ENDING
from shardwright.sharding.clock import CLUSTER_TIME
from shardwright.sharding.operation_session import AUTOCOMMIT
from shardwright.sharding.transaction_protocol import label_transient
from shardwright.wire.error_codes import Category, ErrorCode, has_category
from shardwright.wire.errors import RETRYABLE_WRITE_ERROR, CommandError
from shardwright.wire.max_time import MAX_TIME_MS, max_time_ms
from shardwright.wire.message import reply
from shardwright.wire.read_preference import READ_PREFERENCE
from shardwright.wire.request import Request
from shardwright.wire.transport.client_connection import ClientConnection
from shardwright.wire.transport.request_loop import in_own_task, may_run_in_reactor
from shardwright.wire.well_formed import error_of_request
from shardwright.wire.write_concern import WRITE_CONCERN, check_write_concern


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
        self.passages = RouterPassages(context, is_audited=log is not None)
        self._commands = context.commands
        self._stale_version_retries = context.metrics.counter(
            "stale_version_retries", "Operations repeated because a shard rejected the routing versions sent with them"
        )

    @may_run_in_reactor
    async def handle(self, client: ClientConnection, request: Request) -> bytes | None:
        """Run one command.

        Raises:
            CommandError: it failed.
        """
        context = self._context
        begun, client.begun = client.begun, None
        asked = None
        if begun is None:
            operation = Operation(context, client, request)
        else:
            assert isinstance(begun, BegunOperation)
            operation, asked = begun.take_over(request)
        client.state = operation
        entry = self._commands.find(request.name)
        outcome, code, answer = OK, 0, None
        try:
            if entry is None:
                raise CommandError(ErrorCode.CommandNotFound, f"no such command: '{request.name}'")
            if READ_PREFERENCE in request.fields:
                operation.read_preference  # noqa: B018 - which is checked in any command
            if asked is not None:
                request = operation.request  # which was admitted before it was sent
            elif context.access is not None:
                request = operation.request = await context.access.admit(
                    client,
                    entry.name,
                    request,
                    admin_only=entry.admin_only,
                    may_write=entry.supports_write_concern,
                )
            is_in_transaction = AUTOCOMMIT in request.fields
            if is_in_transaction and context.options.worker_sockets:
                relayed = await relayed_to_owner(context, request)
                if relayed is not None:
                    return relayed
            if not context.signing_keys.are_read and SESSION in request.fields:
                # The session's next operation may be sent to a router that ignores unsigned times.
                await context.client_times.look_up_keys()
            told = request.fields.get(CLUSTER_TIME)
            if told is not None and not context.clock.is_at(request.body, told):
                may_advance = None
                if context.access is not None and operation.user:
                    may_advance = partial(context.access.may_advance_clock, client)
                request = operation.request = await context.client_times.exchange(request, told, may_advance)
            use_session(context.sessions, request, operation.user_name)
            if entry.reads and not is_in_transaction:
                client.allow_interruption()
            if context.parameters.requires_api_version and asked is None:
                require_api_version(client, request)
            max_time_ms = _checked_max_time_ms(entry, request)
            if not entry.begins_in_reactor:
                await in_own_task()
            if context.default_concerns.is_any_set:
                operation.request = with_default_concerns(context.default_concerns, entry, request)
            handler = entry.handler if entry.arguments is None else _checking_arguments(entry)
            if is_in_transaction:
                handler = in_transaction(entry, handler)
            if COLLECTION_UUID in request.fields:
                handler = naming_actual_collection(handler)
            if max_time_ms and asked is None:
                handler = _within(max_time_ms, handler)
            if b"help" in request.fields and asks_for_help(request):
                handler = help_for(entry)
            elif context.fail_points.is_any_on and asked is None:
                handler = under_fail_command(entry, handler)  # which delays a command for longer than it may take
            result = await handler(operation)
            context.target_counts.note(entry.name, operation.targeted, operation.table)
            if client.is_disconnected:
                outcome = outcome_of_success(client, request)
            if result is None:
                return None
            if isinstance(result, bytes):
                answer = result
                if operation.passed_on is not None:
                    self.passages.learn(operation, entry, operation.passed_on, max_time_ms)
                return signed(result, context.signer)
            answer = _framed(operation, result)
            return answer
        except Exception as failure:
            error = error_of_request(failure, request)
            if error is None:
                outcome, code = outcome_of_failure(failure, client), ErrorCode.InternalError
                raise
            outcome, code = error.code_name, error.code
            _label(operation, error)
            return _framed(operation, error.reply())
        except BaseException as failure:
            outcome, code = outcome_of_failure(failure, client), ErrorCode.Interrupted
            if client.interruption is not None:
                code = client.interruption.code
            raise
        finally:
            client.state = None
            if asked is not None and not asked.is_over:
                asked.give_up()
            if client.deadline < math.inf:
                context.deadlines.clear(client)
            if self._audit is not None and entry is not None:
                self._audit.note(operation, entry.name, code)
            seconds = perf_counter() - operation.started
            if operation.retries:
                self._stale_version_retries.add(operation.retries)
            if operation.awaited_routing:
                context.routing.statistics.operations_that_waited[request.name] += 1
            context.metrics.operations.observe(entry.name if entry is not None else "unknown", outcome, seconds)
            if seconds * 1000 >= context.slow_operations.considered_ms and entry is not None:
                self.slow_log.consider(operation, outcome, seconds, answer, waits=_waits(entry))

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


def _checked_max_time_ms(entry: RouterCommand, request: Request) -> int:
    """Check that a command may be run, and return how long it may take; 0 for no limit.

    Raises:
        CommandError: it may not, or its ``maxTimeMS`` is wrong.
    """
    fields = request.fields
    if b"apiVersion" in fields or b"apiStrict" in fields or b"apiDeprecationErrors" in fields:
        check_api_arguments(entry, request)
    if entry.admin_only and request.db != "admin":
        raise CommandError(ErrorCode.Unauthorized, f"{request.name} may only be run against the admin database.")
    if WRITE_CONCERN in fields:
        if not entry.supports_write_concern:
            raise CommandError(ErrorCode.InvalidOptions, "Command does not support writeConcern")
        if not entry.writes:  # those are passed on with it, and checked by the shards
            check_write_concern(request)
    if READ_CONCERN in fields and entry.name not in CHECKED_BY_SHARDS and AUTOCOMMIT not in fields:
        check_read_concern(entry, request)
    if MAX_TIME_MS not in fields or entry.name == "getMore":  # which looks at its other arguments first
        return 0
    milliseconds = max_time_ms(request)
    return milliseconds if entry.deadline_from_max_time else 0


def _checking_arguments(entry: RouterCommand) -> CommandHandler:
    """The handler of a command whose entry lists its arguments."""

    @may_run_in_reactor
    async def handle(operation: Operation) -> Reply:
        entry.check_arguments(operation.request)
        return await entry.handler(operation)

    return handle


def _within(max_time_ms: int, handler: CommandHandler) -> CommandHandler:
    """A handler that is interrupted with MaxTimeMSExpired if it takes longer."""

    @may_run_in_reactor
    async def handle(operation: Operation) -> Reply:
        operation.context.deadlines.set(operation.client, max_time_ms / 1000)
        return await handler(operation)

    return handle


def _framed(operation: Operation, document: dict[str, object]) -> bytes:
    document.setdefault("ok", 1.0)
    document.update(operation.gossip())
    return signed(reply(operation.response_to, bson.encode(document)), operation.context.signer)


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


def _waits(entry: RouterCommand) -> bool:
    """Whether a command may be slow because its client asked to wait."""
    return entry.name in ("hello", "isMaster", "getMore")
