"""Blocking a collection's migrations: for the duration of a change, or by command (``_shardsvrSetAllowMigrations``).

As in MongoDB 6.0, a user's request sets ``permitMigrations`` in the collection's entry, while changes to the collection
set ``allowMigrations`` (``_configsvrSetAllowMigrations``). The shards refresh in either case: a donor aborts a
migration before its commit, and replies once the abort is done.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, ClassVar, Final
from uuid import UUID

from bson.binary import Binary

from shardwright.shardd.context.other_shards import send_to_shards
from shardwright.shardd.context.shard_context import ShardContext
from shardwright.shardd.ddl.coordinators.coordinator import Coordinator
from shardwright.shardd.local_mongod.config_collection import MAJORITY
from shardwright.sharding.catalog.reads import read_routing
from shardwright.sharding.namespace import Namespace
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError

_IS_GONE: Final = frozenset({ErrorCode.NamespaceNotSharded, ErrorCode.InvalidUUID, ErrorCode.NamespaceNotFound})


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
        coordinator: it has just entered a phase, and sent no command to the config servers in it.
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
