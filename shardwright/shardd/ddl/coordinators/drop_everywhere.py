"""Dropping one collection on all shards, as part of dropping a collection or a database."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

from bson.binary import Binary

from shardwright.shardd.context.other_shards import send_to_other_shards
from shardwright.shardd.context.shard_context import ShardContext
from shardwright.shardd.ddl.coordinators.allow_migrations import allow_migrations
from shardwright.shardd.ddl.coordinators.coordinator import Coordinator
from shardwright.shardd.ddl.dropping import drop_here
from shardwright.shardd.metadata.critical_sections import closed
from shardwright.sharding.namespace import Namespace


@asynccontextmanager
async def dropped_everywhere(coordinator: Coordinator, namespace: Namespace, uuid: UUID | None) -> AsyncIterator[None]:
    """Drop a collection in the catalog, then on all other shards, then here, where operations wait for the block's end.

    In the block the coordinator persists its progress. If it did so later, and failed before, the next primary would
    repeat the drop and take a collection that was created since. The order is MongoDB's. An unsharded collection is
    dropped on all shards too, to remove what an earlier drop or a migration has left behind. May be repeated.

    Args:
        coordinator: the drop, which has persisted a transaction number for its participants.
        namespace: the collection.
        uuid: its UUID if it is sharded, else None.

    Raises:
        CommandError: the config servers or a shard refused or could not be reached.
    """
    context = coordinator.context
    if uuid is not None:
        await allow_migrations(context, namespace, uuid, coordinator.session, allow=False)
    await coordinator.migrations.end_all(str(namespace), "Collection is being dropped")
    reason = {"command": "dropCollection", "ns": str(namespace)}
    async with closed(context.namespace(str(namespace)), reason):
        await _drop_in_catalog(coordinator, namespace, uuid)
        participate = {
            "_shardsvrDropCollectionParticipant": namespace.collection,
            "fromMigrate": True,
            **coordinator.session,
        }
        await send_to_other_shards(context, namespace.db, participate)
        await drop_here(context, namespace)
        await _refresh(context, namespace)
        yield


async def _drop_in_catalog(coordinator: Coordinator, namespace: Namespace, uuid: UUID | None) -> None:
    catalog = await coordinator.context.catalog()
    if uuid is None:
        # Zones can be defined for a collection before it is sharded, or even exists.
        await catalog.commit({"_configsvrRemoveTags": str(namespace), **coordinator.session})
        return
    drop: dict[str, Any] = {
        "_configsvrCommitDropCollection": str(namespace),
        "collectionUUID": {"uuid": Binary.from_uuid(uuid)},
    }
    await catalog.commit(drop)


async def _refresh(context: ShardContext, namespace: Namespace) -> None:
    """Refresh the namespace and persist that it is not sharded."""
    state = context.namespace(str(namespace))
    state.forget()
    await context.refresher.refresh_collection(state)
    await context.writer.wait_collection_saved(state.namespace)
