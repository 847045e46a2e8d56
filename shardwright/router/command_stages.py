"""The stages that commands have in common before and around their handlers, in order, each with its conditions.

The order matters. A request is admitted before its session or cluster time is recorded. All checks of its fields come
before the operation leaves the reactor, so that a wrong request costs no task. A fail point may delay a command for
longer than its time limit, so it comes before the deadline.
"""

from collections.abc import Awaitable
from functools import partial
from typing import Final

from shardwright.router.commands.list_commands import help_if_asked
from shardwright.router.composed_commands import Around, Stage
from shardwright.router.concerns import CHECKED_BY_SHARDS, READ_CONCERN, check_read_concern, with_default_concerns
from shardwright.router.fail_command import fail_before, failing_afterwards
from shardwright.router.operations.listed_collection import COLLECTION_UUID, naming_actual_collection
from shardwright.router.operations.operation import Operation
from shardwright.router.operations.router_command import CommandHandler, RouterCommand
from shardwright.router.pipelines.commands import SESSION
from shardwright.router.processes.session_owner import relayed_to_owner
from shardwright.router.replies.reply_builder import Reply
from shardwright.router.session_use import SESSION_FIELDS, use_session
from shardwright.router.stable_api import API_FIELDS, check_api_arguments, require_api_version
from shardwright.router.transaction_execution import in_transaction
from shardwright.sharding.clock import CLUSTER_TIME
from shardwright.sharding.operation_session import AUTOCOMMIT
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.max_time import MAX_TIME_MS, max_time_ms
from shardwright.wire.read_preference import READ_PREFERENCE
from shardwright.wire.transport.request_loop import in_own_task, may_run_in_reactor
from shardwright.wire.write_concern import WRITE_CONCERN, check_write_concern

HELP: Final = b"help"


def _check_read_preference(operation: Operation, _: RouterCommand) -> None:
    operation.read_preference  # noqa: B018 - which is checked in any command


@may_run_in_reactor
async def _admit(operation: Operation, command: RouterCommand) -> None:
    access = operation.context.access
    assert access is not None
    operation.request = await access.admit(
        operation.client,
        command.name,
        operation.request,
        admin_only=command.admin_only,
        may_write=command.supports_write_concern,
    )


@may_run_in_reactor
async def _relay_to_session_owner(operation: Operation, _: RouterCommand) -> bytes | None:
    return await relayed_to_owner(operation.context, operation.request)


@may_run_in_reactor
async def _read_signing_keys(operation: Operation, _: RouterCommand) -> None:
    """The session's next operation may be sent to a router that ignores unsigned times."""
    if not operation.context.signing_keys.are_read:
        await operation.context.client_times.look_up_keys()


def _exchange_cluster_time(operation: Operation, _: RouterCommand) -> Awaitable[None] | None:
    request = operation.request
    is_at_clock = operation.context.clock.is_at(request.body, request.fields[CLUSTER_TIME])
    return None if is_at_clock else _advance_to_cluster_time(operation)


@may_run_in_reactor
async def _advance_to_cluster_time(operation: Operation) -> None:
    context, request = operation.context, operation.request
    may_advance = None
    if context.access is not None and operation.user:
        may_advance = partial(context.access.may_advance_clock, operation.client)
    operation.request = await context.client_times.exchange(request, request.fields[CLUSTER_TIME], may_advance)


def _allow_interruption(operation: Operation, _: RouterCommand) -> None:
    operation.client.allow_interruption()


def _check_database(operation: Operation, command: RouterCommand) -> None:
    command.check_database(operation.request)


def _check_write_concern(operation: Operation, command: RouterCommand) -> None:
    if not command.supports_write_concern:
        raise CommandError(ErrorCode.InvalidOptions, "Command does not support writeConcern")
    check_write_concern(operation.request)


def _read_time_limit(operation: Operation, command: RouterCommand) -> None:
    milliseconds = max_time_ms(operation.request)
    operation.max_time_ms = milliseconds if command.deadline_from_max_time else 0


def _leave_reactor(_: Operation, __: RouterCommand) -> Awaitable[None]:
    return in_own_task()


def _add_default_concerns(operation: Operation, command: RouterCommand) -> None:
    operation.request = with_default_concerns(operation.context.default_concerns, command, operation.request)


def _set_deadline(operation: Operation, _: RouterCommand) -> None:
    if operation.max_time_ms:
        operation.context.deadlines.set(operation.client, operation.max_time_ms / 1000)


def _checking_arguments(command: RouterCommand, handler: CommandHandler) -> CommandHandler:
    @may_run_in_reactor
    async def handle(operation: Operation) -> Reply:
        command.check_arguments(operation.request)
        return await handler(operation)

    return handle


_TRANSACTION: Final = (AUTOCOMMIT,)

STAGES: Final = (
    Stage(name="read preference", run=_check_read_preference, fields=(READ_PREFERENCE,)),
    Stage(name="admission", run=_admit, when=lambda context, _: context.access is not None, is_done_by_passages=True),
    Stage(
        name="relay to the process that has the session's transactions",
        run=_relay_to_session_owner,
        fields=_TRANSACTION,
        when=lambda context, _: bool(context.options.worker_sockets),
    ),
    Stage(
        name="signing keys",
        run=_read_signing_keys,
        fields=(SESSION,),
        when=lambda context, _: not context.signing_keys.are_read,
    ),
    Stage(name="cluster time", run=_exchange_cluster_time, fields=(CLUSTER_TIME,)),
    Stage(name="session", run=use_session, fields=SESSION_FIELDS),
    Stage(name="interruption", run=_allow_interruption, when=lambda _, command: command.reads, unless=_TRANSACTION),
    Stage(
        name="required API version",
        run=require_api_version,
        when=lambda context, _: context.parameters.requires_api_version,
        is_done_by_passages=True,
    ),
    Stage(name="API version", run=check_api_arguments, fields=API_FIELDS),
    Stage(name="database", run=_check_database, when=lambda _, command: command.admin_only),
    Stage(  # shards check the write concerns of writes
        name="write concern",
        run=_check_write_concern,
        fields=(WRITE_CONCERN,),
        when=lambda _, command: not command.writes,
    ),
    Stage(
        name="read concern",
        run=check_read_concern,
        fields=(READ_CONCERN,),
        unless=_TRANSACTION,
        when=lambda _, command: command.name not in CHECKED_BY_SHARDS,
    ),
    Stage(  # getMore looks at its other arguments first
        name="time limit",
        run=_read_time_limit,
        fields=(MAX_TIME_MS,),
        when=lambda _, command: command.name != "getMore",
    ),
    Stage(name="own task", run=_leave_reactor, when=lambda _, command: not command.begins_in_reactor),
    Stage(
        name="default concerns",
        run=_add_default_concerns,
        when=lambda context, _: context.default_concerns.is_any_set,
    ),
    Stage(name="help", run=help_if_asked, fields=(HELP,)),
    Stage(
        name="failCommand",
        run=fail_before,
        when=lambda context, _: context.fail_points.is_any_on,
        is_done_by_passages=True,
    ),
    Stage(
        name="deadline",
        run=_set_deadline,
        fields=(MAX_TIME_MS,),
        when=lambda _, command: command.deadline_from_max_time,
        is_done_by_passages=True,
    ),
)
"""The stages before the handler, in the order in which they run."""

AROUND: Final = (
    Around(
        name="write concern error of failCommand",
        wrap=failing_afterwards,
        when=lambda context, command: context.fail_points.is_any_on and command.supports_write_concern,
        is_done_by_passages=True,
    ),
    Around(
        name="actual collection",
        wrap=lambda _, handler: naming_actual_collection(handler),
        fields=(COLLECTION_UUID,),
    ),
    Around(name="transaction", wrap=in_transaction, fields=_TRANSACTION),
    Around(name="arguments", wrap=_checking_arguments, when=lambda _, command: command.arguments is not None),
)
"""The wrappers of the handler, the outermost first."""
