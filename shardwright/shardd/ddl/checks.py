"""Checks of a DDL request against the current collection and database, once its locks are held."""

from uuid import UUID

from bson.binary import Binary

from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.shardd.context.shard_context import ShardContext
from shardwright.shardd.local_mongod.local_collections import name_of
from shardwright.shardd.metadata.stale_errors import stale_database
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.versions import DatabaseVersion
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError


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
