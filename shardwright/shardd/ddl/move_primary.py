"""Changing the primary shard of a database (``_shardsvrMovePrimary``).

The unsharded collections are copied while clients use them, as a chunk migration copies a range: cloned, then followed
through the oplog. Operations wait only while the last changes are applied and the config servers commit. Until then an
error undoes everything, and a new primary of this shard begins again. From then on the change is completed.
"""

from collections.abc import Container, Mapping
from functools import partial
from typing import Any, ClassVar, Final
from uuid import UUID, uuid4

from bson.binary import Binary

from shardwright.shardd.context.fail_point_names import (
    MOVE_PRIMARY_HANG_AFTER_COMMIT,
    MOVE_PRIMARY_HANG_BEFORE_ABORTING,
    MOVE_PRIMARY_HANG_BEFORE_CLONE,
    MOVE_PRIMARY_HANG_BEFORE_COMMIT,
    MOVE_PRIMARY_HANG_BEFORE_DROPPING,
)
from shardwright.shardd.context.shard_context import ShardContext, log_change
from shardwright.shardd.ddl.coordinator import Coordinator, LocalMigrations
from shardwright.shardd.ddl.database_copy import DatabaseCopy, DatabaseRecipient, create_sharded_on, sharded_namespaces
from shardwright.shardd.ddl.participants import database_closed
from shardwright.shardd.local_mongod.moved_contents import drop_exactly, drop_views
from shardwright.shardd.metadata.critical_sections import MOVE, Drain, SectionDriver
from shardwright.shardd.metadata.database_state import DatabaseState
from shardwright.shardd.metadata.namespace_state import NamespaceState
from shardwright.sharding.catalog.reads import read_database
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.versions import DatabaseVersion
from shardwright.wire.error_codes import Category, ErrorCode, has_category
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.logger import get_logger

logger = get_logger("shardd.move_primary")


CLONE: Final = "clone"
COMMIT: Final = "commit"
CLEAN: Final = "clean"
ABORT: Final = "abort"

_ATTEMPTS_MAX: Final = 3

_LOST: Final = frozenset({ErrorCode.NotYetInitialized, ErrorCode.FailedToSatisfyReadPreference})
"""Further errors of a failover: the recipient's new primary has no state of the attempt."""

_REFUSED: Final = frozenset(
    {ErrorCode.ShardNotFound, ErrorCode.NamespaceNotFound, ErrorCode.ConflictingOperationInProgress}
)
"""Errors of the config servers after which the commit has not been made, and will not be."""


class MovePrimary(Coordinator):
    """Moves a database. The argument ``to`` is the id of its next primary shard.

    Also persisted are ``databaseVersion`` before the move; the current attempt's ``moveId``; ``copies`` and
    ``copiedViews``, which the recipient may have created; ``movedAt``, the cluster time of the move; and in phase
    `ABORT` the ``abortReason``.
    """

    operation_type: ClassVar[str] = "movePrimary"
    is_user_write: ClassVar[bool] = False

    def __init__(
        self,
        context: ShardContext,
        migrations: LocalMigrations,
        namespace: Namespace,
        arguments: Mapping[str, Any],
        phase: str | None = None,
        *,
        may_bypass: bool = False,
    ) -> None:
        super().__init__(context, migrations, namespace, arguments, phase, may_bypass=may_bypass)
        self._section = move_section(context, namespace.db, self.id)

    @property
    def persisted_section(self) -> SectionDriver[DatabaseState] | None:
        """The section in which the commit is sent."""
        return self._section if self.phase == COMMIT else None

    async def may_serve(self, requested: Mapping[str, Any]) -> bool:
        """Whether the database has not been recreated on this shard since the move was committed."""
        if self.phase != CLEAN:
            return True
        entry = await (await self.context.catalog()).read(read_database(self.namespace.db))
        return entry is None or entry.primary != self.context.require_identity().shard_name

    async def run(self) -> dict[str, Any]:
        """Move the database, or complete or undo the move of an earlier term.

        Raises:
            CommandError: ShardNotFound; NamespaceNotFound; NamespaceExists, the recipient has a collection of the same
                name; LockTimeout, transactions are open; or the error that prevented it, once everything has been
                undone.
        """
        if self.phase is None and not await self._begin():
            return {}
        self.must_finish = True
        if self.phase == CLONE:
            await self._copy_or_give_up()
        if self.phase in (CLONE, COMMIT):
            await self._commit()
        if self.phase == ABORT:
            self._section.leave()
            raise await self._abort()
        await self._clean()
        return {}

    @property
    def _to(self) -> str:
        return str(self.arguments["to"])

    @property
    def _details(self) -> dict[str, Any]:
        return {"database": self.namespace.db, "from": self.context.require_identity().shard_name, "to": self._to}

    async def _begin(self) -> bool:
        """Check the request and persist it; return False if ``to`` is already the primary shard."""
        context, db = self.context, self.namespace.db
        catalog = await context.catalog()
        entry = await catalog.read(read_database(db))
        if entry is None:
            raise CommandError(ErrorCode.NamespaceNotFound, f"database {db} not found")
        if entry.primary == self._to:
            return False
        recipient = await catalog.shard_entry(self._to)
        if recipient is None:
            raise CommandError(ErrorCode.ShardNotFound, f"Shard {self._to} not found")
        if recipient.is_draining:
            raise CommandError(ErrorCode.ShardNotFound, f"Shard {self._to} is currently draining")
        await log_change(context, "movePrimary.start", db, self._details)
        await self.enter_phase(CLONE, databaseVersion=entry.version.to_document(), copies=[], copiedViews=[])
        return True

    async def _copy_or_give_up(self) -> None:
        """Copy the database and block writes; after an error enter phase `ABORT`."""
        try:
            await self._copy()
        except Exception as error:
            failure = _as_command_error(error)
            if failure.code == ErrorCode.InternalError:
                logger.exception("Internal error while copying a database", db=self.namespace.db)
            await self._give_up(failure)

    async def _copy(self) -> None:
        for attempts_left in reversed(range(_ATTEMPTS_MAX)):
            await self._drop_copies()
            move_id = uuid4()
            await self.enter_phase(CLONE, moveId=Binary.from_uuid(move_id), copies=[], copiedViews=[])
            await self.context.fail_points.hang_while(MOVE_PRIMARY_HANG_BEFORE_CLONE)
            try:
                await self._attempt(move_id)
            except CommandError as error:
                is_lost = error.code in _LOST or has_category(error.code, Category.RETRYABLE)
                if not is_lost:
                    raise
                if not attempts_left:
                    raise CommandError(
                        ErrorCode.OperationFailed,
                        f"shard {self._to} has failed in each of {_ATTEMPTS_MAX} attempts to receive the database"
                        f" {self.namespace.db} :: caused by :: {error.message}",
                    ) from error
                logger.warning("Copying a database again", db=self.namespace.db, error=str(error))
            else:
                return

    async def _attempt(self, move_id: UUID) -> None:
        context, db = self.context, self.namespace.db
        recipient = DatabaseRecipient(context, db, self._to, move_id)
        await recipient.wait_ready()
        sharded = await sharded_namespaces(context, db)
        await create_sharded_on(context, recipient, sharded)
        self._section = move_section(context, db, self.id, sharded)
        state = context.database(db)
        state.is_moving = True
        try:
            async with self.migrations.databases.serving(db, sharded, move_id) as source:
                copy = DatabaseCopy(context, db, source, recipient, self._section, self._record)
                self.arguments["movedAt"] = await copy.run()
        except BaseException:
            self._section.leave()
            raise
        finally:
            state.is_moving = False

    async def _record(self, copies: object, views: object) -> None:
        await self.enter_phase(CLONE, copies=copies, copiedViews=views)

    async def _commit(self) -> None:
        """Commit on the config servers, while operations wait; if they refuse, enter phase `ABORT`."""
        context, db = self.context, self.namespace.db
        await self._section.close()
        # Writes have been blocked since the copy was complete, or since this shard's primary began its term.
        await self.enter_phase(COMMIT)
        await context.store.count_database_critical_section(db)
        await context.fail_points.hang_while(MOVE_PRIMARY_HANG_BEFORE_COMMIT)
        commit = {
            "_configsvrCommitMovePrimary": db,
            "expectedDatabaseVersion": self.arguments["databaseVersion"],
            "to": self._to,
            "movedAt": self.arguments["movedAt"],
        }
        try:
            await (await context.catalog()).commit(commit)
        except CommandError as error:
            if error.code not in _REFUSED:
                raise
            await self._give_up(error)
            return
        await context.fail_points.hang_while(MOVE_PRIMARY_HANG_AFTER_COMMIT)
        self._section.leave()
        logger.info("Moved a database", db=db, to=self._to, blocked_ms=round(self._section.seconds * 1000, 1))
        await self.enter_phase(CLEAN)

    async def _clean(self) -> None:
        """Drop the collections that were moved to the new primary shard, and end the attempt there."""
        context, db = self.context, self.namespace.db
        await context.refresher.refresh_database(context.database(db))
        await context.fail_points.hang_while(MOVE_PRIMARY_HANG_BEFORE_DROPPING)
        await context.advance_cluster_time(self.arguments["movedAt"])
        copies = self.arguments["copies"]
        await drop_exactly(context.mongod, [(Namespace.parse(each["ns"]), _uuid(each["of"])) for each in copies])
        await self._drop_views()
        await self._recipient().end()
        # Our own addition: change streams look up the primary shard at the time of an event.
        details = {**self._details, "movedAt": self.arguments["movedAt"]}
        await log_change(context, "movePrimary.commit", db, details)

    async def _drop_views(self) -> None:
        """Drop the views that were moved, unless a drop of the database has dropped them since.

        Views are dropped by name. So a view of the same name must be neither in a newer database on this shard, nor
        created while the older one is dropped.
        """
        context, db = self.context, self.namespace.db
        async with database_closed(context, db, {"command": "movePrimary", **self.id}):
            entry = await (await context.catalog()).read(read_database(db))
            moved = DatabaseVersion.from_value(self.arguments["databaseVersion"])
            me = context.require_identity().shard_name
            if entry is not None and entry.version.timestamp == moved.timestamp and entry.primary != me:
                await drop_views(context.mongod, db, self.arguments["copiedViews"])
        context.views.forget()

    async def _give_up(self, error: CommandError) -> None:
        reason = {"code": error.code, "errmsg": error.message}
        logger.warning("Giving up the move of a database", db=self.namespace.db, to=self._to, error=str(error))
        await self.enter_phase(ABORT, abortReason=reason)

    async def _abort(self) -> CommandError:
        """Drop the recipient's copies; return the error that caused the abort."""
        await self.context.fail_points.hang_while(MOVE_PRIMARY_HANG_BEFORE_ABORTING)
        await self._drop_copies()
        reason = self.arguments["abortReason"]
        details = {**self._details, "errmsg": reason["errmsg"]}
        await log_change(self.context, "movePrimary.error", self.namespace.db, details)
        self.must_finish = False
        return CommandError(int(reason["code"]), reason["errmsg"])

    async def _drop_copies(self) -> None:
        if "moveId" in self.arguments:
            await self._recipient().end(self.arguments["copies"], self.arguments["copiedViews"])

    def _recipient(self) -> DatabaseRecipient:
        return DatabaseRecipient(self.context, self.namespace.db, self._to, _uuid(self.arguments["moveId"]))


def move_section(
    context: ShardContext, db: str, identity: Mapping[str, str], sharded: Container[str] = ()
) -> SectionDriver[DatabaseState]:
    """Return a move's critical section, in which operations on the database's unsharded collections wait.

    Args:
        identity: the ``_id`` of the coordinator's document.
        sharded: the namespaces of sharded collections, which are not blocked.
    """

    def states() -> list[NamespaceState]:
        names, prefix = context.namespaces, f"{db}."
        return [each for each in names if each.namespace.startswith(prefix) and each.namespace not in sharded]

    async def wait_running() -> None:
        await context.index_creations.wait_ended_of_database(db)
        for state in states():
            await state.wait_writers_gone()

    return SectionDriver(
        context.database(db),
        {"command": "movePrimary", **identity},
        MOVE,
        [Drain(wait_running, lambda: any(state.transactions for state in states()))],
        forget=partial(context.forget_database, db),
    )


def _uuid(value: bytes) -> UUID:
    return UUID(bytes=bytes(value))


def _as_command_error(error: Exception) -> CommandError:
    if isinstance(error, CommandError):
        return error
    if isinstance(error, BackendError):
        return CommandError(ErrorCode.HostUnreachable, str(error))
    return CommandError(ErrorCode.InternalError, f"{type(error).__name__}: {error}")
