"""Keeping a collection's chunks where they are while the collection changes."""

from collections.abc import Mapping
from typing import Any, Final
from uuid import UUID

from bson.binary import Binary

from shardwright.shardd.context.shard_context import ShardContext
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
        context: this shard daemon's context.
        namespace: the collection.
        uuid: its UUID.
        session: the coordinator's session, whose number the config servers have not seen yet.
        allow: whether migrations are allowed from now on.

    Raises:
        CommandError: the config servers or a shard that owns chunks could not be reached.
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
