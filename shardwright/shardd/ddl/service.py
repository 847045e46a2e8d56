"""Running DDL coordinators on a primary, for new requests and from earlier terms.

A `CoordinatorRun` is one coordinator with the requests that wait for its result; a request for the same change joins
it. As in MongoDB, the document is removed at the end, even after an error. A change past its point of no return does
not end with an error: it is retried until it is done, or until the term ends and the next primary resumes it.

A coordinator is recovered from its document by the persisted name of its kind (`recovered_coordinator`).
"""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from math import inf
from typing import Any, Final

import trio

from shardwright.daemon.backoff import Backoff
from shardwright.daemon.sidecar.user_write_block import BYPASS, UserWriteBlock
from shardwright.shardd.context.shard_context import ShardContext
from shardwright.shardd.ddl.coordinator import (
    BEGIN,
    Coordinator,
    LocalMigrations,
    SetAllowMigrations,
    check_is_same_database,
    coordinator_documents,
)
from shardwright.shardd.ddl.create_collection import CreateCollection
from shardwright.shardd.ddl.create_indexes import CreateIndexes
from shardwright.shardd.ddl.drop_indexes import DropIndexes
from shardwright.shardd.ddl.drops import DropCollection, DropDatabase
from shardwright.shardd.ddl.modify_collection import ModifyCollection
from shardwright.shardd.ddl.move_primary import MovePrimary
from shardwright.shardd.ddl.rename_collection import RenameCollection
from shardwright.shardd.ddl.shard_key_changes import RefineCollectionShardKey, ReshardCollection
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.versions import DatabaseVersion
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.logger import Logger, get_logger
from shardwright.wire.rawbson import encode_document, is_string, raw_document

logger = get_logger("shardd.coordinators")


COORDINATORS: Final[Mapping[str, type[Coordinator]]] = {
    kind.operation_type: kind
    for kind in (
        CreateCollection,
        CreateIndexes,
        DropCollection,
        DropDatabase,
        DropIndexes,
        ModifyCollection,
        RefineCollectionShardKey,
        MovePrimary,
        RenameCollection,
        ReshardCollection,
        SetAllowMigrations,
    )
}

_NOT_ARGUMENTS: Final = frozenset({"_id", "recoveredFromDisk", "forwardableOpMetadata", "phase"})

RETRY_SECONDS: Final = 0.5
"""The longest pause before the first retry of a change; it doubles with each further retry."""

RETRY_SECONDS_MAX: Final = 10.0
"""The longest pause before a retry."""


def recovered_coordinator(
    context: ShardContext, migrations: LocalMigrations, document: Mapping[str, Any]
) -> Coordinator | None:
    """Recover a coordinator from its document; None if its kind is unknown to this version.

    A document of an unknown kind is kept for the version that wrote it, and does not prevent other changes.
    """
    identity, phase = document["_id"], document.get("phase")
    kind = COORDINATORS.get(str(identity.get("operationType"))) if isinstance(identity, Mapping) else None
    if kind is None or not is_string(identity.get("namespace")) or not is_string(phase):
        return None
    arguments = {name: value for name, value in document.items() if name not in _NOT_ARGUMENTS}
    may_bypass = bool(document.get("forwardableOpMetadata", {}).get(BYPASS))
    namespace = Namespace.parse(identity["namespace"])
    return kind(context, migrations, namespace, arguments, phase, may_bypass=may_bypass)


async def run_to_end(coordinator: Coordinator) -> dict[str, Any]:
    """Run a coordinator, with retries if it must finish, and remove its document; return the reply.

    CommandError means that the change could not be made and nothing of it is left to do. It may also mean that the
    document could not be removed, for instance after a step-down.
    """
    attempt, backoff = 1, Backoff(RETRY_SECONDS, RETRY_SECONDS_MAX)
    while True:
        try:
            await coordinator.save()
            reply = await coordinator.run()
            coordinator.is_over = True
            await _remove_document(coordinator)
        except Exception as error:
            failure = _as_command_error(coordinator, error)
        else:
            return reply
        if not coordinator.must_finish:
            coordinator.is_over = True
            await _remove_document(coordinator)
            raise failure
        # A late change is better than a half-done one.
        pause = backoff.next_seconds()
        _logger_of(coordinator).warning(
            "Retrying a DDL operation",
            attempt=attempt,
            code=failure.code,
            error=str(failure),
            retry_seconds=round(pause, 3),
        )
        await trio.sleep(pause)
        attempt += 1


async def _remove_document(coordinator: Coordinator) -> None:
    if coordinator.phase is not None:
        await coordinator.remove_document()


def _as_command_error(coordinator: Coordinator, error: Exception) -> CommandError:
    if isinstance(error, CommandError):
        return error
    if isinstance(error, BackendError):
        return CommandError(ErrorCode.HostUnreachable, str(error))
    _logger_of(coordinator).exception("Internal error in a DDL operation")
    return CommandError(ErrorCode.InternalError, f"{type(error).__name__}: {error}")


def _logger_of(coordinator: Coordinator) -> Logger:
    return logger.bind(namespace=coordinator.id["namespace"], operation=coordinator.operation_type)


class WaitingRequests:
    """Requests that wait for an event, and are interrupted when their client's session is killed."""

    def __init__(self) -> None:
        self._sessions: dict[trio.CancelScope, bytes | None] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    async def wait(self, ended: trio.Event, lsid: bytes | None, deadline: float = inf) -> None:
        """Wait for an event.

        Args:
            lsid: the session of the request's client.
            deadline: on trio's clock.

        Raises:
            CommandError: MaxTimeMSExpired; Interrupted, the session was killed.
        """
        with trio.CancelScope(deadline=deadline) as scope:
            self._sessions[scope] = lsid
            try:
                await ended.wait()
            finally:
                del self._sessions[scope]
        if scope.cancel_called:
            raise interruption(deadline)

    def of_sessions(self, is_meant: Callable[[bytes], bool]) -> list[trio.CancelScope]:
        """Return the cancel scopes of the requests of some sessions."""
        return [scope for scope, lsid in self._sessions.items() if lsid is not None and is_meant(lsid)]


def interruption(deadline: float) -> CommandError:
    """Return the error of a request that was interrupted by its deadline or by a command."""
    if trio.current_time() >= deadline:
        return CommandError(ErrorCode.MaxTimeMSExpired, "operation exceeded time limit")
    return CommandError(ErrorCode.Interrupted, "operation was interrupted")


class CoordinatorRun:
    """A coordinator in progress, and the requests that wait for its result.

    Attributes:
        ended: set once it has ended, with a `reply` or an `error`.
    """

    def __init__(self, coordinator: Coordinator) -> None:
        self.coordinator = coordinator
        self.ended = trio.Event()
        self.reply: dict[str, Any] = {}
        self.error: CommandError | None = None
        self._waiting = WaitingRequests()
        self._arguments = dict(coordinator.arguments)
        self._is_recovered = coordinator.phase is not None

    async def may_serve(self, requested: Mapping[str, Any]) -> bool:
        """Whether a request may be for this change, which has been neither made nor abandoned.

        Raises CommandError or BackendError, as `Coordinator.may_serve`.
        """
        coordinator = self.coordinator
        is_interrupted = coordinator.phase is None and coordinator.beginning.cancel_called
        return not (coordinator.is_over or is_interrupted) and await coordinator.may_serve(requested)

    def has_arguments(self, requested: Mapping[str, Any]) -> bool:
        """Whether it makes the requested change. The order of fields matters, for example in a shard key.

        Arguments that the phases of a recovered coordinator have added are not compared.
        """
        own = self._arguments
        names = set(requested) if self._is_recovered else own.keys() | requested.keys()
        names -= self.coordinator.not_compared
        compared = ({name: each.get(name) for name in sorted(names)} for each in (own, requested))
        return len({encode_document(each) for each in compared}) == 1

    async def result(self, lsid: bytes | None) -> dict[str, Any]:
        """Wait for the result; return the reply for a request.

        Raises:
            CommandError: it failed; Interrupted, the session was killed.
        """
        await self._waiting.wait(self.ended, lsid)
        if self.error is not None:
            raise self.error
        return dict(self.reply)

    def kill_sessions(self, is_killed: Callable[[bytes], bool]) -> None:
        """Interrupt the requests of some sessions, and the change if no other request waits for it."""
        killed = self._waiting.of_sessions(is_killed)
        if killed and len(killed) == len(self._waiting):
            self.coordinator.kill()
            return
        for scope in killed:
            scope.cancel()


_NAMES: Final[Mapping[str, str]] = {"createCollection_V2": "CreateCollection", "collMod_V2": "CollMod"}
"""MongoDB's names of the coordinators whose operation types differ from their names."""


def coordinator_operation(coordinator: Coordinator) -> dict[str, Any]:
    """Describe a coordinator as an entry of ``$currentOp``."""
    kind = coordinator.operation_type
    name = _NAMES.get(kind) or kind[0].upper() + kind[1:]
    operation = {
        "type": "op",
        "desc": f"{name}Coordinator",
        "op": "command",
        "ns": coordinator.id["namespace"],
        "command": {each: value for each, value in coordinator.arguments.items() if each != "session"},
        "active": True,
    }
    if coordinator.opid is not None:
        operation["opid"] = coordinator.opid
    if coordinator.lsid is not None:
        operation["lsid"] = raw_document(coordinator.lsid)
    return operation if coordinator.phase is None else {**operation, "currentPhase": coordinator.phase}


_THREAD: Final = "ShardingDDLCoordinator"
"""MongoDB's name for the holder of DDL locks in ``config.locks``, there with a number."""

Check = Callable[[], Awaitable[None]]
"""Raises CommandError if the change must not be made any more."""


class CoordinatorService:
    """The coordinators of one shard daemon."""

    def __init__(self, context: ShardContext, migrations: LocalMigrations) -> None:
        self._context = context
        self._migrations = migrations
        self._nursery: trio.Nursery | None = None
        self._runs: dict[tuple[str, ...], CoordinatorRun] = {}
        self._waiting_to_begin = WaitingRequests()

    async def restore_sections(self, term: int) -> None:
        """Block operations on what a coordinator may have committed, before any are admitted in a term."""
        for document in await coordinator_documents(self._context).all():
            coordinator = recovered_coordinator(self._context, self._migrations, document)
            section = None if coordinator is None else coordinator.persisted_section
            if section is not None:
                await section.restore()

    async def begin_term(self, term: int, nursery: trio.Nursery) -> None:
        """Resume the coordinators of earlier terms, and then accept new requests.

        Args:
            nursery: the term's nursery, in which coordinators run until step-down.
        """
        for document in await coordinator_documents(self._context).all():
            coordinator = recovered_coordinator(self._context, self._migrations, document)
            if coordinator is None:
                logger.error("Cannot resume a DDL operation of an unknown kind", document=str(document))
                continue
            _logger_of(coordinator).info("Resuming a DDL operation", phase=coordinator.phase)
            self._start(coordinator, nursery)
        self._nursery = nursery

    def end_term(self) -> None:
        """Refuse further requests. Coordinators were cancelled with their nursery; the next primary resumes them."""
        self._nursery = None

    def operations(self) -> list[dict[str, Any]]:
        """Return the coordinators in progress, including those that wait for locks, as entries of ``$currentOp``."""
        return [coordinator_operation(run.coordinator) for run in self._runs.values()]

    def kill(self, opid: object) -> bool:
        """Interrupt the coordinator with this ``opid``; return whether there is one."""
        meant = [run.coordinator for run in self._killable() if run.coordinator.opid == opid]
        for coordinator in meant:
            coordinator.kill()
        return bool(meant)

    def kill_sessions(self, is_killed: Callable[[bytes], bool]) -> None:
        """Interrupt the requests of clients in some sessions, except for changes that can no longer be interrupted."""
        for run in self._killable():
            run.kill_sessions(is_killed)
        for scope in self._waiting_to_begin.of_sessions(is_killed):
            scope.cancel()

    def _killable(self) -> list[CoordinatorRun]:
        return [run for run in self._runs.values() if run.coordinator.opid is not None]

    async def run(
        self,
        kind: type[Coordinator],
        namespace: Namespace,
        arguments: Mapping[str, Any],
        *,
        received: DatabaseVersion | None = None,
        check: Check | None = None,
        may_bypass: bool = False,
        lsid: bytes | None = None,
    ) -> dict[str, Any]:
        """Make a change, or wait for the result of an equal one in progress.

        Args:
            received: the version of the database in the request; None if the database has none.
            check: called once the locks are held, before the first change.
            may_bypass: whether the caller may write while user writes are blocked.
            lsid: the session of the caller's client.

        Raises:
            CommandError: it failed; UserWritesBlocked; NotWritablePrimary, the daemon has not recovered as primary;
                ConflictingOperationInProgress, a change of this kind with other arguments is in progress;
                StaleDbVersion, the database has moved or was dropped while the change waited for its locks;
                Interrupted, MaxTimeMSExpired; or raised by ``check``.
            BackendError: the local mongod does not answer.
        """
        coordinator = kind(self._context, self._migrations, namespace, arguments, may_bypass=may_bypass)
        coordinator.lsid = None if coordinator.opid is None else lsid
        run = self._runs.get(_key(coordinator))
        while run is not None and not await run.may_serve(coordinator.arguments):
            await self._waiting_to_begin.wait(run.ended, lsid, coordinator.beginning.deadline)
            run = self._runs.get(_key(coordinator))
        if run is None:
            if self._nursery is None:
                raise CommandError(ErrorCode.NotWritablePrimary, "not primary")
            run = self._start(coordinator, self._nursery, received, check)
        elif not run.has_arguments(coordinator.arguments):
            raise CommandError(ErrorCode.ConflictingOperationInProgress, coordinator.conflict_text)
        else:
            run.coordinator.beginning.deadline = max(run.coordinator.beginning.deadline, coordinator.beginning.deadline)
        return await run.result(lsid)

    async def wait_database_released(self, db: str) -> None:
        """Wait until this shard, a former primary shard of the database, has dropped its collections.

        Raises the error that interrupted the coordinator, for example a step-down. The next primary continues it.
        """
        run = self._runs.get((f"{db}.", MovePrimary.operation_type))
        if run is not None:
            await run.ended.wait()
            if run.coordinator.phase is not None and run.error is not None:
                raise run.error

    async def wait_user_writes_over(self) -> None:
        """Wait for the coordinators in progress that write for users; later ones check the block themselves."""
        for run in [run for run in self._runs.values() if run.coordinator.is_blockable]:
            await run.ended.wait()

    def _start(
        self,
        coordinator: Coordinator,
        nursery: trio.Nursery,
        received: DatabaseVersion | None = None,
        check: Check | None = None,
    ) -> CoordinatorRun:
        run = self._runs[_key(coordinator)] = CoordinatorRun(coordinator)
        nursery.start_soon(self._execute, coordinator, run, received, check)
        return run

    async def _check_not_blocked(self) -> None:
        if await UserWriteBlock(self._context.mongod).is_ddl_blocked():
            raise CommandError(ErrorCode.UserWritesBlocked, "User writes blocked")

    async def _execute(
        self, coordinator: Coordinator, run: CoordinatorRun, received: DatabaseVersion | None, check: Check | None
    ) -> None:
        try:
            # A recovered coordinator waits for the others without a limit.
            if coordinator.phase is None and coordinator.is_blockable:
                await self._check_not_blocked()
            seconds_max = inf if coordinator.must_finish else coordinator.lock_seconds_max
            async with AsyncExitStack() as held:
                with coordinator.beginning:
                    await held.enter_async_context(self._context.ddl_locks.hold_all(coordinator.locks, seconds_max))
                    shown = self._context.shown_locks.shown(coordinator.locks, _THREAD, coordinator.operation_type)
                    await held.enter_async_context(shown)
                    await held.enter_async_context(coordinator.entered())
                    await coordinator.hang_at(BEGIN)
                    if received is not None:
                        await check_is_same_database(self._context, coordinator.namespace, received)
                    if check is not None:
                        await check()
                if coordinator.beginning.cancelled_caught:
                    raise interruption(coordinator.beginning.deadline)
                run.reply = await run_to_end(coordinator)
        except CommandError as error:
            run.error = error
        except BackendError as error:
            run.error = CommandError(ErrorCode.HostUnreachable, str(error))
        except BaseException:
            run.error = CommandError(
                ErrorCode.InterruptedDueToReplStateChange, "operation was interrupted because the primary stepped down"
            )
            raise
        finally:
            del self._runs[_key(coordinator)]
            run.ended.set()


def _key(coordinator: Coordinator) -> tuple[str, ...]:
    return tuple(coordinator.id.values())
