"""The stages common to all commands, before and around their handlers, in order, each with its conditions.

The order matters. A request is admitted before its session or cluster time is recorded. All checks of its fields come
before the operation leaves the reactor, so that a wrong request costs no task. A fail point may delay a command for
longer than its time limit, so it comes before the deadline.

**Composition.** The work around a handler depends on the command, on the router's settings, and on generic fields of
the request, such as a session or a time limit. There are some twenty conditions, and nearly all have the same result
for successive operations. So each condition belongs to a named stage in one of two lists. The lists are evaluated for
the first operation of a kind, and all others of the kind reuse the result.

A kind is a command, the deciding fields of the request, and whether a passage has begun the operation. Settings are not
part of it: a change of a deciding setting changes the `Epoch`, which drops all compositions.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias

from shardwright.router.access.internal_fields import KEPT_FROM_SHARDS, without_internal_fields
from shardwright.router.commands.router_commands import help_if_asked
from shardwright.router.commands.transactions import in_transaction
from shardwright.router.context.router_context import RouterContext
from shardwright.router.generic_arguments import (
    CHECKED_BY_SHARDS,
    READ_CONCERN,
    check_api_arguments,
    check_read_concern,
    check_read_concern_type,
    require_api_version,
    use_session,
    with_default_concerns,
)
from shardwright.router.operations.fail_command import fail_before, failing_afterwards
from shardwright.router.operations.listed_collection import COLLECTION_UUID, naming_actual_collection
from shardwright.router.operations.operation import CommandHandler, Operation, RouterCommand
from shardwright.router.pipelines.commands import SESSION
from shardwright.router.processes.siblings import relayed_to_owner
from shardwright.router.replies.reply_builder import Reply
from shardwright.router.traced_sender import tracing_requests
from shardwright.sharding.clock import CLUSTER_TIME
from shardwright.sharding.transaction_protocol import AUTOCOMMIT
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError, unknown_field
from shardwright.wire.passages import EPOCH
from shardwright.wire.read_preference import READ_PREFERENCE
from shardwright.wire.request import SESSION_FIELDS
from shardwright.wire.request_validation import (
    API_PARAMETERS,
    MAX_TIME_MS,
    WRITE_CONCERN,
    check_write_concern,
    max_time_ms,
)
from shardwright.wire.trace_context import TRACE_CONTEXT
from shardwright.wire.transport.reactor import in_own_task, may_run_in_reactor
from shardwright.wire.transport.server import LOCAL_PEER

Run: TypeAlias = Callable[[Operation, RouterCommand], Awaitable[bytes | None] | None]
"""The function of a stage. It may return an awaitable to be awaited; a reply frame from that ends the operation."""

Wrap: TypeAlias = Callable[[RouterCommand, CommandHandler], CommandHandler]

Condition: TypeAlias = Callable[[RouterContext, RouterCommand], bool]

KINDS_MAX: Final = 4_096
"""Number of kinds after which all compositions are dropped, so that odd requests cannot fill the memory."""

HELP: Final = b"help"


def always(_: RouterContext, __: RouterCommand) -> bool:
    """Meet the condition for all commands."""
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """The conditions under which an operation has a stage.

    Attributes:
        fields: the request must have one of these; empty if it need not have any.
        unless: the request must have none of these.
        when: whether a command has the stage under the router's current settings.
        is_done_by_passages: whether operations that a passage has begun skip the stage, because the passage did it.
    """

    name: str
    fields: tuple[bytes, ...] = ()
    unless: tuple[bytes, ...] = ()
    when: Condition = always
    is_done_by_passages: bool = False

    def are_met(
        self, context: RouterContext, command: RouterCommand, fields: frozenset[bytes], *, is_begun: bool
    ) -> bool:
        """Whether operations of a kind have the stage."""
        return (
            (not self.fields or not fields.isdisjoint(self.fields))
            and fields.isdisjoint(self.unless)
            and not (is_begun and self.is_done_by_passages)
            and self.when(context, command)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage(Conditions):
    """A stage before the handler."""

    run: Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Around(Conditions):
    """A wrapper of the handler."""

    wrap: Wrap


@dataclass(frozen=True, slots=True)
class ComposedCommand:
    """The composition for one kind of operation.

    Attributes:
        stages: the stages before the handler, in order.
        handler: the wrapped handler.
        may_be_learned: whether a passage may take over such operations, as far as the kind decides.
    """

    stages: tuple[Run, ...]
    handler: CommandHandler
    may_be_learned: bool


class ComposedCommands:
    """The commands of one router, by kind.

    Args:
        stages: the stages in the order in which they run.
        around: the wrappers, the outermost first.
        may_be_learned: returns whether passages may take over operations with certain deciding fields.
    """

    def __init__(
        self,
        context: RouterContext,
        stages: Sequence[Stage],
        around: Sequence[Around],
        may_be_learned: Callable[[frozenset[bytes]], bool],
    ) -> None:
        self._context = context
        self._stages = stages
        self._around = around
        self._may_be_learned = may_be_learned
        listed = (*stages, *around)
        self._deciding = frozenset(field for each in listed for field in (*each.fields, *each.unless))
        self._composed: dict[tuple[str, frozenset[bytes], bool], ComposedCommand] = {}
        self._epoch = EPOCH.number

    def of(self, command: RouterCommand, fields: Mapping[bytes, object], *, is_begun: bool) -> ComposedCommand:
        """Return the composition for a request.

        Args:
            fields: the top-level fields of the request.
            is_begun: whether a passage has begun the operation.
        """
        if self._epoch != EPOCH.number:
            self._composed.clear()
            self._epoch = EPOCH.number
        kind = (command.name, self._deciding.intersection(fields), is_begun)
        composed = self._composed.get(kind)
        if composed is None:
            if len(self._composed) >= KINDS_MAX:
                self._composed.clear()
            composed = self._composed[kind] = self._compose(command, kind[1], is_begun=is_begun)
        return composed

    def _compose(self, command: RouterCommand, fields: frozenset[bytes], *, is_begun: bool) -> ComposedCommand:
        def has(stage: Conditions) -> bool:
            return stage.are_met(self._context, command, fields, is_begun=is_begun)

        handler = command.handler
        for each in reversed(self._around):
            if has(each):
                handler = each.wrap(command, handler)
        stages = tuple(each.run for each in self._stages if has(each))
        return ComposedCommand(stages, handler, self._may_be_learned(fields))


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


def _drop_internal_fields(operation: Operation, command: RouterCommand) -> None:
    is_local = operation.client.peer == LOCAL_PEER
    operation.request = without_internal_fields(operation.request, command.name, is_local=is_local)


def _refuse_trace_context(operation: Operation, command: RouterCommand) -> None:
    """Refuse a field that only routers send, as mongos refuses any unknown field. Clients name a trace in a comment."""
    raise unknown_field(f"{command.name}.{TRACE_CONTEXT.decode()}")


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
        name="internal fields",
        run=_drop_internal_fields,
        fields=KEPT_FROM_SHARDS,
        when=lambda context, _: context.access is None,
    ),
    Stage(name="trace of another server", run=_refuse_trace_context, fields=(TRACE_CONTEXT,)),
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
    Stage(name="API version", run=check_api_arguments, fields=API_PARAMETERS),
    Stage(name="database", run=_check_database, when=lambda _, command: command.admin_only),
    Stage(  # shards check the write concerns of writes
        name="write concern",
        run=_check_write_concern,
        fields=(WRITE_CONCERN,),
        when=lambda _, command: not command.writes,
    ),
    Stage(
        name="type of read concern",
        run=check_read_concern_type,
        fields=(READ_CONCERN,),
        is_done_by_passages=True,
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
    Around(
        name="trace",
        wrap=lambda _, handler: tracing_requests(handler),
        when=lambda context, _: context.tracing is not None,
        is_done_by_passages=True,
    ),
    Around(name="arguments", wrap=_checking_arguments, when=lambda _, command: command.arguments is not None),
)
"""The wrappers of the handler, the outermost first."""
