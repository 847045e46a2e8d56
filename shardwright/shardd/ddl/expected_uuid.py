"""Checking ``collectionUUID``, by which a client says that only the very collection with that UUID is meant."""

from uuid import UUID

from bson.binary import Binary

from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.shardd.local_mongod.local_collections import name_of
from shardwright.sharding.namespace import Namespace
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError


async def check_expected_uuid(mongod: LocalMongod, namespace: Namespace, expected: Binary | None) -> None:
    """Check that a collection has the UUID that a client expects.

    Args:
        mongod: that of the database's primary shard, which has all collections of the database.
        namespace: the collection.
        expected: its UUID; None if the client does not care.

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
