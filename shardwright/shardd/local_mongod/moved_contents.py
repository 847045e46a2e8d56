"""Dropping and creating collections and views of a moved database on a shard that is not its primary shard."""

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Final
from uuid import UUID

from bson.binary import Binary

from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.shardd.local_mongod import local_collections
from shardwright.shardd.local_mongod.local_collections import MAJORITY
from shardwright.shardd.local_mongod.shard_key_index import all_documents
from shardwright.sharding.namespace import Namespace
from shardwright.wire.rawbson import raw_document

VIEWS: Final = "system.views"


async def drop_exactly(mongod: LocalMongod, collections: Sequence[tuple[Namespace, UUID]]) -> None:
    """Drop the collections with these names and UUIDs, if they exist."""
    for namespace, uuid in collections:
        if namespace.collection in local_collections.UNDROPPABLE:
            await mongod.global_lock.between_transactions(partial(_drop_by_operation, mongod, namespace, uuid))
        elif await _is_there(mongod, namespace, uuid):
            await local_collections.drop(mongod, namespace)


async def _is_there(mongod: LocalMongod, namespace: Namespace, uuid: UUID) -> bool:
    existing = await local_collections.describe(mongod, namespace)
    return existing is not None and existing.uuid == uuid


async def _drop_by_operation(
    mongod: LocalMongod, namespace: Namespace, uuid: UUID, max_time: Mapping[str, int]
) -> None:
    if await _is_there(mongod, namespace, uuid):
        drop = {"op": "c", "ns": f"{namespace.db}.$cmd", "ui": Binary.from_uuid(uuid)}
        operation = {**drop, "o": {"drop": namespace.collection}}
        await mongod.command("admin", {"applyOps": [operation], "writeConcern": MAJORITY, **max_time})


async def create_views(mongod: LocalMongod, db: str, views: Sequence[bytes]) -> None:
    """Create views, given as documents of ``system.views``."""
    namespace = Namespace(db, VIEWS)
    if views:
        await local_collections.create(mongod, namespace)
        await _change_views(mongod, namespace, "i", views)


async def drop_views(mongod: LocalMongod, db: str, names: Collection[str]) -> None:
    """Drop views by namespace, then ``system.views`` if it is empty, because mongod keeps it."""
    namespace = Namespace(db, VIEWS)
    if await local_collections.describe(mongod, namespace) is None:
        return
    present = await all_documents(mongod, namespace, {"filter": {"_id": {"$in": list(names)}}})
    await _change_views(mongod, namespace, "d", present)
    if await local_collections.is_empty(mongod, namespace):
        await local_collections.drop(mongod, namespace)


async def _change_views(mongod: LocalMongod, namespace: Namespace, op: str, views: Sequence[bytes]) -> None:
    """Insert or delete documents as oplog operations, because mongod refuses other writes of ``system.views``."""
    operations = [{"op": op, "ns": str(namespace), "o": raw_document(view)} for view in views]

    async def attempt(max_time: Mapping[str, int]) -> None:
        await mongod.command("admin", {"applyOps": operations, "writeConcern": MAJORITY, **max_time})

    if operations:
        await mongod.global_lock.between_transactions(attempt)
