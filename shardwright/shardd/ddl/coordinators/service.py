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
from shardwright.shardd.ddl.coordinators.coordinator_run import CoordinatorRun, WaitingRequests, interruption
from shardwright.shardd.ddl.coordinators.left_behind import left_behind
from shardwright.shardd.ddl.coordinators.move_primary import MovePrimary, restore_section
from shardwright.shardd.ddl.coordinators.retries import run_to_end
from shardwright.shardd.ddl.coordinators.shown_coordinators import coordinator_operation
from shardwright.shardd.ddl.primary_shard import check_is_same_database
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.versions import DatabaseVersion
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import BackendError, CommandError

_THREAD: Final = "ShardingDDLCoordinator"
"""What holds the locks, as MongoDB names it in ``config.locks``, there with a number."""

Check = Callable[[], Awaitable[None]]
"""Raises CommandError if a change is not to be made any more."""


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
        self._runs: dict[tuple[str, ...], CoordinatorRun] = {}
        self._waiting_to_begin = WaitingRequests()

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
        """End the requests of clients in some sessions, unless their change has begun and cannot be ended."""
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
                database has moved or was dropped while the change waited for its locks; Interrupted, MaxTimeMSExpired;
                what ``check`` raises.
        """
        coordinator = kind(self._context, self._migrations, namespace, arguments, may_bypass=may_bypass)
        coordinator.lsid = None if coordinator.opid is None else lsid
        run = self._runs.get(_key(coordinator))
        while run is not None and not run.is_joinable:
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
