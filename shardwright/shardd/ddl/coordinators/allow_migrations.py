"""Keeping a collection's chunks where they are while the collection changes."""

from typing import Final
from uuid import UUID

from bson.binary import Binary

from shardwright.shardd.context.shard_context import ShardContext
from shardwright.sharding.namespace import Namespace
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError

_IS_GONE: Final = frozenset({ErrorCode.NamespaceNotSharded, ErrorCode.InvalidUUID, ErrorCode.NamespaceNotFound})


async def allow_migrations(context: ShardContext, namespace: Namespace, uuid: UUID, *, allow: bool) -> None:
    """Allow or forbid migrations of a collection; forbidding also aborts one that has not been committed.

    Does nothing if the collection is no longer in the catalog.

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
