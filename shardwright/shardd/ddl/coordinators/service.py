"""Running coordinators on a primary: those of new requests, and those that a former primary left behind."""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from math import inf
from typing import Any, Final

import trio

from shardwright.daemon.sidecar.user_write_block import UserWriteBlock
from shardwright.shardd.context.shard_context import ShardContext
from shardwright.shardd.ddl.coordinators.coordinator import (
    BEGIN,
    Coordinator,
    LocalMigrations,
    coordinator_documents,
)
from shardwright.shardd.ddl.coordinators.left_behind import left_behind
from shardwright.shardd.ddl.coordinators.move_primary import MovePrimary, restore_section
from shardwright.shardd.ddl.coordinators.retries import run_to_end
from shardwright.shardd.ddl.coordinators.shown_coordinators import coordinator_operation
from shardwright.shardd.ddl.primary_shard import check_is_same_database
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.versions import DatabaseVersion
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.rawbson import encode_document

_THREAD: Final = "ShardingDDLCoordinator"
"""What holds the locks, as MongoDB names it in ``config.locks``, there with a number."""

Check = Callable[[], Awaitable[None]]
"""Raises CommandError if a change is not to be made any more."""


class _Run:
    """A coordinator under way, and its result for the requests that wait for it."""

    def __init__(self, coordinator: Coordinator) -> None:
        self.coordinator = coordinator
        self.ended = trio.Event()
        self.reply: dict[str, Any] = {}
        self.error: CommandError | None = None
        self._waiting: dict[trio.CancelScope, bytes | None] = {}
        self._arguments = dict(coordinator.arguments)
        self._is_left_behind = coordinator.phase is not None

    @property
    def is_joinable(self) -> bool:
        """Whether an equal request may wait for it: the change has not been made, nor given up."""
        coordinator = self.coordinator
        return not coordinator.is_over and (coordinator.phase is not None or not coordinator.beginning.cancel_called)

    def has_arguments(self, requested: Mapping[str, Any]) -> bool:
        """Whether it makes the requested change; the order of fields in a shard key, for example, matters.

        One that a former primary left behind also has what its phases have added, which is not compared.
        """
        own = self._arguments
        names = set(requested) if self._is_left_behind else own.keys() | requested.keys()
        names -= self.coordinator.not_compared
        compared = ({name: each.get(name) for name in sorted(names)} for each in (own, requested))
        return len({encode_document(each) for each in compared}) == 1

    async def result(self, lsid: bytes | None) -> dict[str, Any]:
        """The reply for a request, once the change has been made.

        Args:
            lsid: the session of its client.

        Raises:
            CommandError: it failed; Interrupted, the session was killed.
        """
        with trio.CancelScope() as scope:
            self._waiting[scope] = lsid
            try:
                await self.ended.wait()
            finally:
                del self._waiting[scope]
        if scope.cancelled_caught:
            raise CommandError(ErrorCode.Interrupted, "operation was interrupted")
        if self.error is not None:
            raise self.error
        return dict(self.reply)

    def kill_sessions(self, is_killed: Callable[[bytes], bool]) -> None:
        """End the requests of some sessions; if no other waits for the change, end that."""
        killed = [scope for scope, lsid in self._waiting.items() if lsid is not None and is_killed(lsid)]
        if killed and len(killed) == len(self._waiting):
            self.coordinator.kill()
            return
        for scope in killed:
            scope.cancel()


class CoordinatorService:
    """The coordinators of one shard daemon.

    Args:
        context: this shard daemon's context.
        migrations: this shard's migrations, which drops end.
    """

    def __init__(self, context: ShardContext, migrations: LocalMigrations) -> None:
        self._context = context
        self._migrations = migrations
        self._nursery: trio.Nursery | None = None
        self._runs: dict[tuple[str, ...], _Run] = {}

    async def restore_sections(self, term: int) -> None:
        """Block operations on databases whose move may have been committed, before any are admitted in a term.

        Raises:
            CommandError: mongod refuses.
            BackendError: mongod does not answer.
        """
        for document in await coordinator_documents(self._context).all():
            await restore_section(self._context, document)

    async def begin_term(self, term: int, nursery: trio.Nursery) -> None:
        """Start the coordinators that were left behind, and then accept new requests.

        Args:
            term: the term that begins.
            nursery: the term's nursery, in which coordinators run until step-down.
        """
        for document in await coordinator_documents(self._context).all():
            coordinator = left_behind(self._context, self._migrations, document)
            if coordinator is not None:
                self._start(coordinator, nursery)
        self._nursery = nursery

    def end_term(self) -> None:
        """Refuse further requests. Coordinators were cancelled with their nursery; the next primary resumes them."""
        self._nursery = None

    def operations(self) -> list[dict[str, Any]]:
        """The coordinators under way, those that wait for locks included, as ``$currentOp`` shows them."""
        return [coordinator_operation(run.coordinator) for run in self._runs.values()]

    def kill(self, opid: object) -> bool:
        """End the coordinator that `operations` shows under ``opid``; returns whether there is one."""
        meant = [run.coordinator for run in self._killable() if run.coordinator.opid == opid]
        for coordinator in meant:
            coordinator.kill()
        return bool(meant)

    def kill_sessions(self, is_killed: Callable[[bytes], bool]) -> None:
        """End the requests of clients in some sessions, of those changes that can be ended."""
        for run in self._killable():
            run.kill_sessions(is_killed)

    def _killable(self) -> list[_Run]:
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
        """Make a change, or wait for the end of the same one if it is under way.

        Args:
            kind: the kind of change.
            namespace: the collection or database to change.
            arguments: the request's arguments.
            received: the version of the database in the request; None if the database has none.
            check: called once the locks are held, when nothing has been changed yet.
            may_bypass: whether the caller may write while the writes of users are blocked.
            lsid: the session of the caller's client.

        Raises:
            CommandError: it failed; UserWritesBlocked; NotWritablePrimary, the daemon has not recovered as primary;
                ConflictingOperationInProgress, a similar change with other arguments is under way; StaleDbVersion, the
                database has moved or was dropped while the change waited for its locks; what ``check`` raises.
        """
        coordinator = kind(self._context, self._migrations, namespace, arguments, may_bypass=may_bypass)
        coordinator.lsid = None if coordinator.opid is None else lsid
        run = self._runs.get(_key(coordinator))
        while run is not None and not run.is_joinable:
            await run.ended.wait()
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
        """Wait until this shard, if it has handed a database over, has dropped what it had of it."""
        run = self._runs.get((f"{db}.", MovePrimary.operation_type))
        if run is not None:
            await run.ended.wait()

    async def wait_user_writes_over(self) -> None:
        """Wait for the coordinators under way that write for users; those that begin now find out what is blocked."""
        for run in [run for run in self._runs.values() if run.coordinator.is_blockable]:
            await run.ended.wait()

    def _start(
        self,
        coordinator: Coordinator,
        nursery: trio.Nursery,
        received: DatabaseVersion | None = None,
        check: Check | None = None,
    ) -> _Run:
        run = self._runs[_key(coordinator)] = _Run(coordinator)
        nursery.start_soon(self._execute, coordinator, run, received, check)
        return run

    async def _check_not_blocked(self) -> None:
        if await UserWriteBlock(self._context.mongod).is_ddl_blocked():
            raise CommandError(ErrorCode.UserWritesBlocked, "User writes blocked")

    async def _execute(
        self, coordinator: Coordinator, run: _Run, received: DatabaseVersion | None, check: Check | None
    ) -> None:
        try:
            # One that was left behind waits for the others as long as it takes.
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
                    raise _not_begun(coordinator)
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


def _not_begun(coordinator: Coordinator) -> CommandError:
    if trio.current_time() >= coordinator.beginning.deadline:
        return CommandError(ErrorCode.MaxTimeMSExpired, "operation exceeded time limit")
    return CommandError(ErrorCode.Interrupted, "operation was interrupted")


def _key(coordinator: Coordinator) -> tuple[str, ...]:
    return tuple(coordinator.id.values())
