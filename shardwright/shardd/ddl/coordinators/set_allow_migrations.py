"""Forbidding a collection's migrations, or allowing them again (``_shardsvrSetAllowMigrations``)."""

from typing import Any, ClassVar

from shardwright.shardd.context.other_shards import send_to_shards
from shardwright.shardd.ddl.coordinators.coordinator import Coordinator
from shardwright.shardd.local_mongod.write_concern import MAJORITY
from shardwright.sharding.catalog.reads import read_routing
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError


class SetAllowMigrations(Coordinator):
    """The argument ``allowMigrations`` says which. It is a single write, so there is nothing to persist.

    As in MongoDB 6.0, a user's request sets ``permitMigrations`` in the collection's entry, while changes to the
    collection set ``allowMigrations`` (``_configsvrSetAllowMigrations``). The shards refresh in either case: a donor
    aborts a migration that it has not begun to commit, and replies once that is done.
    """

    operation_type: ClassVar[str] = "setAllowMigrations"
    is_user_write: ClassVar[bool] = False

    async def run(self) -> dict[str, Any]:
        """Change the collection's entry and have the shards that own chunks refresh.

        Raises:
            CommandError: NamespaceNotSharded; or the error of a shard, after the change itself has been made.
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
