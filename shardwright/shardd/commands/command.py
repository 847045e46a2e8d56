"""A command that the shard daemon answers itself: its entry in the table, what its handler uses, and how it is run.

The daemon has a few server parameters of its own; it forwards all others to mongod.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Final, TypeAlias

import bson
import trio

from shardwright.daemon.option_values import parse_boolean
from shardwright.daemon.sidecar.access import SidecarCommand
from shardwright.daemon.sidecar.term_fence import working_for
from shardwright.shardd.context.shard_context import ShardContext
from shardwright.shardd.ddl.participants import BlockedCollections, RenameParticipants
from shardwright.shardd.ddl.service import CoordinatorService
from shardwright.shardd.exchange.term_exchange import gossip, seconds_allowed
from shardwright.shardd.migration.active_migrations import MigrationParameters
from shardwright.shardd.migration.migrations import Migrations
from shardwright.shardd.operations.waiting_operations import WaitingOperations
from shardwright.shardd.range_deleter.range_deleter_service import RangeDeletions
from shardwright.shardd.resharding.service import ReshardingService
from shardwright.shardd.splitting.auto_splitter import AutoSplitter
from shardwright.shardd.splitting.growth import SplitParameters
from shardwright.shardd.splitting.key_statistics import KeyStatisticsParameters
from shardwright.shardd.two_phase_commit.coordinators import TransactionCoordinators, coordinator_operation
from shardwright.sharding.logical_sessions import NAMESPACE as SESSIONS
from shardwright.sharding.namespace import full_namespace
from shardwright.sharding.versions import DATABASE_VERSION, DatabaseVersion, StaleError
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.message import reply, reply_of_elements
from shardwright.wire.passages import EPOCH
from shardwright.wire.request import Request
from shardwright.wire.transport.client_connection import ClientConnection


@dataclass(slots=True)
class PassageParameters:
    """Parameters of passages.

    Attributes:
        is_enabled: whether new passages are recognised (`wire.passages`).
    """

    is_enabled: bool = True


@dataclass(frozen=True, slots=True)
class ServerParameters:
    """The current values of all parameters, in groups."""

    migration: MigrationParameters
    splitting: SplitParameters
    key_statistics: KeyStatisticsParameters
    passages: PassageParameters = field(default_factory=PassageParameters)


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter.

    Attributes:
        group: name of the group's attribute in `ServerParameters`.
        attribute: name of the value's attribute in the group.
        check: validates a client's value, and returns the value to store.
        parse: parses the text of a command line.
    """

    group: str
    attribute: str
    check: Callable[[Any], Any]
    parse: Callable[[str], Any]


def _boolean(value: Any) -> bool:  # noqa: ANN401 - whatever a client sent
    if not isinstance(value, bool | int | float):
        raise CommandError(ErrorCode.BadValue, f"expected a boolean, got {value!r}")
    return bool(value)


def _seconds(value: Any) -> float:  # noqa: ANN401 - whatever a client sent
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        raise CommandError(ErrorCode.BadValue, f"expected a number of seconds, got {value!r}")
    return float(value)


def _fraction(value: Any) -> float:  # noqa: ANN401 - whatever a client sent
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
        raise CommandError(ErrorCode.BadValue, f"expected a number above 0 and up to 1, got {value!r}")
    return float(value)


PARAMETERS: Final[Mapping[str, Parameter]] = {
    "enablePassages": Parameter("passages", "is_enabled", _boolean, parse_boolean),
    "verifyMigrations": Parameter("migration", "verify", _boolean, parse_boolean),
    "migrationCatchUpTimeoutSecs": Parameter("migration", "catch_up_seconds_max", _seconds, float),
    "keyStatistics": Parameter("key_statistics", "is_enabled", _boolean, parse_boolean),
    "keyStatisticsIntervalSecs": Parameter("key_statistics", "interval_seconds", _seconds, float),
    "autoSplitChunks": Parameter("splitting", "is_enabled", _boolean, parse_boolean),
    "autoSplitGrowthFraction": Parameter("splitting", "growth_fraction", _fraction, float),
}
"""The parameters by name."""


def get_parameter(parameters: ServerParameters, name: str) -> Any:  # noqa: ANN401 - parameters are of all types
    """Return the value of a parameter."""
    parameter = PARAMETERS[name]
    return getattr(getattr(parameters, parameter.group), parameter.attribute)


def set_parameter(parameters: ServerParameters, name: str, value: Any) -> Any:  # noqa: ANN401 - of any type
    """Change a parameter and return its old value, or raise BadValue."""
    parameter = PARAMETERS[name]
    group = getattr(parameters, parameter.group)
    old = getattr(group, parameter.attribute)
    setattr(group, parameter.attribute, parameter.check(value))
    EPOCH.bump()
    return old


def parse_parameter(text: str) -> tuple[str, Any]:
    """Split a command line's ``NAME=VALUE`` and parse the value, or raise ValueError with a message for the user."""
    name, equals, value = text.partition("=")
    if not equals or name not in PARAMETERS:
        raise ValueError(f"{text!r} is not NAME=VALUE with one of the parameters {', '.join(PARAMETERS)}")
    parameter = PARAMETERS[name]
    try:
        return name, parameter.check(parameter.parse(value))
    except CommandError as error:
        raise ValueError(error.message) from error


@dataclass(frozen=True, slots=True)
class ShardComponents:
    """The components of a shard daemon that have commands of their own, and the context for all other commands."""

    context: ShardContext
    parameters: ServerParameters
    range_deletions: RangeDeletions
    migrations: Migrations
    coordinators: CoordinatorService
    renames: RenameParticipants
    blocked: BlockedCollections
    transaction_coordinators: TransactionCoordinators
    resharding: ReshardingService
    waiting: WaitingOperations
    auto_splitter: AutoSplitter

    def operations(self) -> list[dict[str, Any]]:
        """The daemon's own operations, unknown to its mongod, as ``currentOp`` shows them."""
        address = self.context.options.address
        commits = [coordinator_operation(each, address) for each in self.transaction_coordinators.running]
        resharding = self.resharding.operations()
        waiting = self.waiting.operations(address)
        return [*self.migrations.progress(), *self.coordinators.operations(), *resharding, *commits, *waiting]


@dataclass(frozen=True, slots=True)
class RawReply:
    """A reply that is already BSON: its elements without ``ok``, in pieces of any size."""

    elements: Sequence[bytes | memoryview]


CommandHandler: TypeAlias = Callable[[ShardComponents, Request], Awaitable[dict[str, Any] | RawReply]]


@dataclass(frozen=True, slots=True)
class ShardCommand(SidecarCommand[CommandHandler]):
    """A command, and the checks that are made before it runs.

    Attributes:
        primary_only: whether only the primary's daemon runs it.
        needs_identity: whether the set must have been added to a cluster.
        is_ddl: whether it changes collections of a database: then the request must have the database version, and this
            shard must be the database's primary shard.
        is_interruptible: whether it may be cancelled when its client disconnects.
    """

    _: KW_ONLY
    primary_only: bool = True
    needs_identity: bool = True
    is_ddl: bool = False
    is_interruptible: bool = False

    @property
    def waits_for_recovery(self) -> bool:
        """Whether a new primary runs it only after restoring the critical sections of earlier terms.

        If it entered its own section earlier, it could wait for the recovery while the recovery waits for that section.
        It could also miss state that is not restored yet. Before a set has its identity, no term begins.
        """
        return self.primary_only and self.needs_identity


async def run_command(
    command: ShardCommand, shard: ShardComponents, client: ClientConnection, request: Request
) -> bytes:
    """Run a command; returns the frame of the reply.

    Raises:
        CommandError: it must not run here or now, or it failed.
        BackendError: mongod does not answer.
    """
    context = shard.context
    if command.is_interruptible:
        client.allow_interruption()
    command.check_database(request)
    if command.primary_only:
        reign = await context.sidecar.certainty.present_reign()
        if reign is None:
            raise CommandError(ErrorCode.NotWritablePrimary, "not primary")
        with working_for(reign), context.sidecar.certainty.while_role_lasts():
            return await _run(command, shard, request)
        raise CommandError(ErrorCode.InterruptedDueToReplStateChange, "operation was interrupted")
    return await _run(command, shard, request)


async def _run(command: ShardCommand, shard: ShardComponents, request: Request) -> bytes:
    context = shard.context
    context.config_times.observe(request)
    if command.needs_identity:
        await context.load_identity()
    if command.is_ddl and not _is_about_sessions(request):
        await check_database_version(context, request, full_namespace(request).db if command.admin_only else None)
    try:
        with trio.move_on_after(seconds_allowed(request)) as deadline:
            if command.waits_for_recovery:
                await context.recovery_gate.wait_open()
            body = await command.handler(shard, request)
        if deadline.cancelled_caught:
            # A coordinator continues; only the wait for it ends.
            raise CommandError(ErrorCode.MaxTimeMSExpired, "operation exceeded time limit")
    finally:
        if command.is_ddl:
            context.views.forget()
    if isinstance(body, RawReply):
        rest = bson.encode({"ok": 1.0, **await _times(context)})[4:-1]
        return reply_of_elements(request.message.request_id, (*body.elements, rest))
    body.setdefault("ok", 1.0)
    body.update(await _times(context))
    return reply(request.message.request_id, bson.encode(body))


async def _times(context: ShardContext) -> dict[str, Any]:
    """The times in the reply. mongod is given the newest cluster time first, so that none goes back.

    Raises:
        CommandError: InterruptedDueToReplStateChange, the term is over.
    """
    times = context.config_times
    own = await gossip(context.mongod, times.clock.time.cluster_time)
    times.observe_reply(own)
    return {**times.gossip(), **own}


def _is_about_sessions(request: Request) -> bool:
    """Whether a command shards ``config.system.sessions``, whose database has no primary shard."""
    return request.name == "_shardsvrCreateCollection" and f"{request.db}.{request.collection}" == SESSIONS


async def check_database_version(context: ShardContext, request: Request, db: str | None = None) -> None:
    """Check that a DDL command was routed by the current version of its database, to the primary shard.

    Args:
        context: this shard daemon's context.
        request: the command.
        db: the database that it changes, if that is not the one on which it is run.

    Raises:
        CommandError: IllegalOperation, it has no version, or this is not the primary shard; StaleDbVersion.
    """
    span = request.fields.get(DATABASE_VERSION)
    if span is None:
        raise CommandError(ErrorCode.IllegalOperation, "Request sent without attaching database version")
    db = db or request.db
    received = DatabaseVersion.from_span(request.body, span)
    raw = request.body[span[2] : span[3]]
    state = context.database(db)
    try:
        state.check_version(raw, received)
    except StaleError as error:
        if not error.may_shard_be_stale:
            raise
        await context.refresher.refresh_database(state)
        state.check_version(raw, received)
    assert state.entry is not None
    this = context.require_identity().shard_name
    if state.entry.primary != this:
        raise CommandError(
            ErrorCode.IllegalOperation,
            f"This is not the primary shard for db {db} expected: {state.entry.primary} shardId: {this}",
        )
