"""Keeping the chunks of a collection where they are while it changes."""

from typing import Final
from uuid import UUID

from bson.binary import Binary

from shardwright.shardd.context.shard_context import ShardContext
from shardwright.sharding.namespace import Namespace
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError

_IS_GONE: Final = frozenset({ErrorCode.NamespaceNotSharded, ErrorCode.InvalidUUID, ErrorCode.NamespaceNotFound})


async def allow_migrations(context: ShardContext, namespace: Namespace, uuid: UUID, *, allow: bool) -> None:
    """Let chunks of a collection move, or not: then a migration that has not been committed ends, and no other begins.

    A collection that has left the catalog has no chunks: that is fine.

    Raises:
        CommandError: the config servers or a shard that owns chunks could not be reached.
    """
    change = {
        "_configsvrSetAllowMigrations": str(namespace),
        "allowMigrations": allow,
        "collectionUUID": Binary.from_uuid(uuid),
    }
    try:
        await (await context.catalog()).commit(change)
    except CommandError as error:
        if error.code not in _IS_GONE:
            raise
