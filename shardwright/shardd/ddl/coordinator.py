"""The base of all DDL coordinators: a change of several steps that survives failovers.

A coordinator writes its document (``config.system.sharding_ddl_coordinators``) before the first step that must not be
lost, and deletes it after the last. A primary that finds the document at step-up runs the coordinator again from the
beginning, so every step must be repeatable.

A request is checked against the current collection and database once its locks are held (`check_expected_uuid`,
`check_is_same_database`).

**Migration blocking.** Most changes block the collection's migrations while they run (`migrations_blocked`). A user
blocks them by command, which is a change of its own (`SetAllowMigrations`, ``_shardsvrSetAllowMigrations``). As in
MongoDB 6.0, the user's request sets ``permitMigrations`` in the collection's entry, while other changes set
``allowMigrations`` (``_configsvrSetAllowMigrations``). The shards refresh in either case: a donor aborts a migration
before its commit, and replies once the abort is done.
"""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Container, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any, ClassVar, Final, Protocol
from uuid import UUID, uuid4

import trio
from bson.binary import Binary
from bson.int64 import Int64

from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.daemon.sidecar.user_write_block import BYPASS
from shardwright.shardd.context.ddl_locks import LOCK_SECONDS_MAX
from shardwright.shardd.context.fail_point_names import HANG_IN_DDL_COORDINATOR
from shardwright.shardd.context.shard_context import ShardContext, send_to_shards
from shardwright.shardd.ddl.database_copy import DatabaseMoves
from shardwright.shardd.local_mongod.local_collections import MAJORITY, ConfigCollection, name_of
from shardwright.shardd.metadata.critical_sections import SectionDriver
from shardwright.sharding.catalog.reads import read_routing
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.routing_table import RoutingTable
from shardwright.sharding.versions import DatabaseVersion, stale_database
from shardwright.wire.error_codes import Category, ErrorCode, has_category
from shardwright.wire.errors import CommandError

BEGIN: Final = "begin"
END: Final = "end"
"""Places other than phases where a fail point can pause a coordinator."""

COLLECTION: Final = "collInfo"
"""Additional argument of a persisted change of a sharded collection: the collection's ``uuid``."""

_COLLECTION: Final = "system.sharding_ddl_coordinators"

_NO_ANSWER: Final = frozenset({ErrorCode.FailedToSatisfyReadPreference, ErrorCode.WriteConcernFailed})

_IS_GONE: Final = frozenset({ErrorCode.NamespaceNotSharded, ErrorCode.InvalidUUID, ErrorCode.NamespaceNotFound})


async def check_expected_uuid(mongod: LocalMongod, namespace: Namespace, expected: Binary | None) -> None:
    """Check that a collection has the UUID that a client expects.

    Args:
        mongod: the mongod of the database's primary shard, which has all collections of the database.
        expected: the client's ``collectionUUID``; None if there is none.

    Raises:
        CommandError: CollectionUUIDMismatch, with the name of the collection that has the UUID, if there is one.
    """
    if expected is None:
        return
    name = await name_of(mongod, namespace.db, UUID(bytes=bytes(expected)))
    if name == namespace.collection:
        return
    raise CommandError(
        ErrorCode.CollectionUUIDMismatch,
        "Collection UUID does not match that specified",
        extra={
            "db": namespace.db,
            "collectionUUID": expected,
            "expectedCollection": namespace.collection,
            "actualCollection": name,
        },
    )


async def check_is_same_database(context: ShardContext, namespace: Namespace, received: DatabaseVersion) -> None:
    """Refuse a change if its database was moved or dropped while the change waited for its lock.

    Args:
        received: the database version in the request.

    Raises:
        StaleError: StaleDbVersion, so that the router refreshes the database's entry; or raised by a refresh.
    """
    if namespace.is_internal:
        return
    state = context.database(namespace.db)
    if state.entry is None:
        await context.refresher.refresh_database(state)
    wanted = None if state.entry is None else state.entry.version
    if wanted is None or not received.matches(wanted):
        raise stale_database(namespace.db, received, wanted, may_shard_be_stale=False)


class LocalMigrations(Protocol):
    """This shard's migrations, which changes to collections end, and its moves of databases."""

    @property
    def databases(self) -> DatabaseMoves:
        """The moves of databases to other shards."""

    async def end_all(self, namespace: str, reason: str) -> None:
        """End a collection's migration in either direction; it writes nothing more once this has returned."""


class Coordinator(ABC):
    """One change in progress on the primary of the database's primary shard.

    Args:
        namespace: the collection to change; for a database, its collection part is empty.
        arguments: the request's arguments in their persisted form.
        phase: the persisted phase; None at the beginning.
        may_bypass: whether its caller may write while user writes are blocked.

    Attributes:
        operation_type: MongoDB's name for the kind of change.
        is_user_write: whether it is refused while user writes are blocked.
        not_compared: the arguments in which requests for the same change may differ.
        lock_seconds_max: time limit for acquiring its locks; then it fails with LockBusy.
        must_finish: whether the point of no return has, or may have, been passed, so that errors lead to retries.
        is_over: whether the change has been made or abandoned; a later equal request starts a new change.
        beginning: the scope until it holds its locks; it has changed nothing before.
        opid: the number in ``currentOp`` and for ``killOp``; None if it cannot be killed.
        lsid: the session of its client, for ``killSessions``; None if unknown.
    """

    operation_type: ClassVar[str]
    is_user_write: ClassVar[bool] = True
    not_compared: ClassVar[frozenset[str]] = frozenset()
    lock_seconds_max: ClassVar[float] = LOCK_SECONDS_MAX

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
        self.context = context
        self.migrations = migrations
        self.namespace = namespace
        self.arguments = dict(arguments)
        self.phase = phase
        self.may_bypass = may_bypass
        # The progress of an earlier term is unknown until `run` has determined it.
        self.must_finish = phase is not None
        self.is_over = False
        self.beginning = trio.CancelScope()
        self.opid: int | None = None
        self.lsid: bytes | None = None
        self._unsaved: dict[str, Any] | None = None

    @property
    def id(self) -> dict[str, str]:
        """The ``_id`` of its document. A namespace can have only one change of each kind in progress."""
        name = str(self.namespace) if self.namespace.collection else f"{self.namespace.db}."
        return {"namespace": name, "operationType": self.operation_type}

    @property
    def is_blockable(self) -> bool:
        """Whether it is refused while user writes are blocked."""
        return self.is_user_write and not self.may_bypass

    @property
    def locks(self) -> list[str]:
        """The locks held from beginning to end (see `DDLLocks`): databases first, then collections, both sorted.

        The lock of a database excludes other coordinators. The lock of a collection excludes operations that lock only
        the collection.
        """
        return [self.namespace.db, *([str(self.namespace)] if self.namespace.collection else [])]

    @property
    def conflict_text(self) -> str:
        """The message of ConflictingOperationInProgress for a request with other arguments."""
        return (
            f"Another {self.operation_type} for namespace {self.namespace} is being executed with different parameters"
        )

    async def may_serve(self, requested: Mapping[str, Any]) -> bool:
        """Whether a request that arrives now may be for this change.

        Otherwise the request is for a newer object of the same name, so it waits for the end and starts another change.

        Args:
            requested: the arguments of the request.

        Raises:
            CommandError, BackendError: the answer could not be determined.
        """
        return True

    @asynccontextmanager
    async def entered(self) -> AsyncIterator[None]:
        """Hold resources other than the locks, from beginning to end, or refuse the change."""
        yield

    def kill(self) -> None:
        """Interrupt the change, which may take a while. Called only if it has an `opid`."""
        if self.phase is None:
            self.beginning.cancel()

    @property
    def persisted_section(self) -> SectionDriver[Any] | None:
        """The critical section that a new primary enters again before it admits operations; None without one.

        The change may have been committed in this section.
        """
        return None

    @abstractmethod
    async def run(self) -> dict[str, Any]:
        """Make the change; return the reply to the caller. After an error it is retried if `must_finish`."""

    async def read_routing(self) -> RoutingTable | None:
        """Read the collection's current routing table; None if it is not sharded."""
        catalog = await self.context.catalog()
        return await catalog.read(read_routing(str(self.namespace)))

    @contextmanager
    def point_of_no_return(
        self, *, retried: Container[int] = (), final: Container[int] = frozenset()
    ) -> Iterator[None]:
        """Run a block that commits the change. Afterwards the change must finish, unless it was definitely refused.

        A change that had to finish before still must after a refusal, because an earlier attempt may have made part of
        it. A caller that knows better sets `must_finish` to False first.

        Args:
            retried: error codes that are not definite refusals.
            final: refusals that end even a change that had to finish before, because it can never be completed.
        """
        had_to_finish = self.must_finish
        self.must_finish = True
        try:
            yield
        except CommandError as error:
            is_refused = not (error.code in retried or _may_be_done(error.code))
            self.must_finish = not is_refused or (had_to_finish and error.code not in final)
            raise

    @property
    def session(self) -> dict[str, Any]:
        """The ``lsid`` and ``txnNumber`` of this phase's one command to participants, and one to the config servers.

        Each number is executed once: see `daemon.sidecar.command_sessions`.
        """
        session: dict[str, Any] = self.arguments["session"]
        return session

    async def enter_phase(self, phase: str, **arguments: object) -> None:
        """Persist that everything before ``phase`` is done, with ``arguments`` for the next steps.

        Participants then refuse commands of earlier phases. They, and the config servers, treat a second command in the
        same phase as a repetition of the first. So the phase has to be entered again before another command.
        """
        self.phase = phase
        session = self.arguments.get("session") or new_session()
        self.arguments |= {**arguments, "session": {**session, "txnNumber": Int64(session["txnNumber"] + 1)}}
        self._unsaved = {
            "_id": self.id,
            "recoveredFromDisk": True,
            "forwardableOpMetadata": {BYPASS: self.may_bypass},
            "phase": phase,
            **self.arguments,
        }
        await self.save()
        await self.hang_at(phase)

    async def save(self) -> None:
        """Persist the current phase unless it is: nothing of it may be done before, or a new primary would not know."""
        if self._unsaved is not None:
            await coordinator_documents(self.context).save(self._unsaved)
            self._unsaved = None

    async def hang_at(self, place: str) -> None:
        """Wait while the fail point pauses coordinators of this kind at a place: `BEGIN`, a phase or `END`."""

        def concerns_this(data: Mapping[str, Any]) -> bool:
            here = {"operationType": self.operation_type, "at": place}
            return all(data.get(name, value) == value for name, value in here.items())

        await self.context.fail_points.hang_while(HANG_IN_DDL_COORDINATOR, concerns_this)

    async def remove_document(self) -> None:
        """Remove the document of a change that has been made or abandoned."""
        await self.hang_at(END)
        await coordinator_documents(self.context).remove(self.id)
        self.phase = self._unsaved = None


def new_session() -> dict[str, Any]:
    """Return the ``lsid`` and ``txnNumber`` of a first command."""
    return {"lsid": {"id": Binary.from_uuid(uuid4())}, "txnNumber": Int64(0)}


def coordinator_documents(context: ShardContext) -> ConfigCollection:
    """Return the collection with the documents of all coordinators."""
    return ConfigCollection(context.mongod, _COLLECTION)


def is_outage(code: int) -> bool:
    """Whether a command that failed with this error may have been executed, or may succeed when it is sent again."""
    categories = (Category.RETRYABLE, Category.NETWORK_TIMEOUT)
    return code in _NO_ANSWER or any(has_category(code, category) for category in categories)


def _may_be_done(code: int) -> bool:
    """Whether a command that failed with this error may have been executed."""
    return is_outage(code) or has_category(code, Category.EXCEEDED_TIME_LIMIT)


async def allow_migrations(
    context: ShardContext, namespace: Namespace, uuid: UUID, session: Mapping[str, Any], *, allow: bool
) -> None:
    """Allow or forbid migrations of a collection; forbidding also aborts one that has not been committed.

    Does nothing if the collection is no longer in the catalog.

    Args:
        session: the coordinator's session, with a number that is new to the config servers.
    """
    change = {
        "_configsvrSetAllowMigrations": str(namespace),
        "allowMigrations": allow,
        "collectionUUID": Binary.from_uuid(uuid),
        **session,
    }
    try:
        await (await context.catalog()).commit(change)
    except CommandError as error:
        if error.code not in _IS_GONE:
            raise


@asynccontextmanager
async def migrations_blocked(coordinator: Coordinator, uuid: UUID) -> AsyncIterator[None]:
    """Forbid migrations of a coordinator's collection in the block; migrations in progress are ended first.

    If the block fails for good (see `Coordinator.must_finish`), migrations are allowed again before the error is
    raised. If it has to be repeated, they stay forbidden until then.

    Args:
        coordinator: it has just entered a phase, and sent no command to the config servers in it. Unless it must
            finish, none of the change has been made, so a refusal to forbid migrations ends it.
    """

    async def allow(*, is_allowed: bool) -> None:
        await allow_migrations(coordinator.context, coordinator.namespace, uuid, coordinator.session, allow=is_allowed)

    async def allow_again() -> None:
        coordinator.must_finish = True
        assert coordinator.phase is not None
        await coordinator.enter_phase(coordinator.phase)  # for another command to the config servers
        await allow(is_allowed=True)

    try:
        with coordinator.point_of_no_return():
            await allow(is_allowed=False)
        yield
    except CommandError:
        if not coordinator.must_finish:
            await allow_again()
            coordinator.must_finish = False
        raise
    await allow_again()


class SetAllowMigrations(Coordinator):
    """Allows or forbids migrations, by the argument ``allowMigrations``. A single write, so it has no document."""

    operation_type: ClassVar[str] = "setAllowMigrations"
    is_user_write: ClassVar[bool] = False

    async def run(self) -> dict[str, Any]:
        """Change the collection's entry, then refresh the shards that own chunks.

        Raises NamespaceNotSharded, or the error of a shard after the change itself has been made.
        """
        context, namespace = self.context, str(self.namespace)
        catalog = await context.catalog()
        change = (
            {"$unset": {"permitMigrations": True}}
            if self.arguments["allowMigrations"]
            else {"$set": {"permitMigrations": False}}
        )
        update = {
            "update": "collections",
            "updates": [{"q": {"_id": namespace}, "u": change}],
            "writeConcern": MAJORITY,
        }
        reply = await catalog.command(update, "config")
        table = await catalog.read(read_routing(namespace)) if reply["n"] else None
        if table is None:
            raise CommandError(ErrorCode.NamespaceNotSharded, "Collection must be sharded so migrations can be blocked")
        flush = {
            "_flushRoutingTableCacheUpdatesWithWriteConcern": namespace,
            "syncFromConfig": True,
            "writeConcern": MAJORITY,
        }
        await send_to_shards(context, table.shards, "admin", flush)
        return {}
