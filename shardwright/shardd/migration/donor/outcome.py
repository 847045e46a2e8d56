"""Committing a migration on the config servers, and querying whether it was committed.

A lost reply leaves the outcome open. Before the donor looks at the chunks, it makes sure that a delayed commit fails:
it raises the chunk's version, and config servers refuse to commit for an older one.
"""

from collections.abc import Mapping
from typing import Any

from bson.binary import Binary

from shardwright.daemon.backoff import Backoff
from shardwright.shardd.cluster.catalog import Catalog
from shardwright.shardd.context.fail_point_names import MIGRATION_COMMIT_NETWORK_ERROR, MIGRATION_COMMIT_VERSION_ERROR
from shardwright.shardd.context.shard_context import ShardContext
from shardwright.shardd.migration.documents import MigrationCoordinatorDocument
from shardwright.shardd.migration.donor.plan import MovePlan
from shardwright.sharding.catalog.reads import read_routing
from shardwright.sharding.refined_key import extend_bound
from shardwright.sharding.routing_table import RoutedChunk, RoutingTable
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.logger import get_logger
from shardwright.wire.rawbson import raw_document

logger = get_logger("shardd.migration.donor")


async def commit_on_config(context: ShardContext, plan: MovePlan, cluster_time: Mapping[str, Any] | None) -> None:
    """Make the config servers assign the range to the recipient.

    Args:
        cluster_time: the recipient's ``$clusterTime`` after its last write. The new placement is valid after that time.

    Raises:
        CommandError: it was refused, or the outcome is unknown.
    """
    context.fail_points.fail_if_on(MIGRATION_COMMIT_VERSION_ERROR, ErrorCode.StaleEpoch)
    catalog = await context.catalog()
    valid_after = await context.placement_time(cluster_time)
    await catalog.commit(
        {
            "_configsvrCommitChunkMigration": str(plan.request.namespace),
            "fromShard": context.require_identity().shard_name,
            "toShard": plan.request.recipient,
            "migratedChunk": {**plan.range.to_document(), "lastmod": plan.chunk_version.to_document()},
            "fromShardCollectionVersion": plan.table.collection_version.to_document(),
            "validAfter": valid_after,
        }
    )
    context.fail_points.fail_if_on(MIGRATION_COMMIT_NETWORK_ERROR)


async def wait_outcome(context: ShardContext, coordinator: MigrationCoordinatorDocument) -> bool:
    """Whether the config servers have durably committed a migration; retries until the answer is known."""
    backoff = Backoff(first_seconds=0.05, seconds_max=2.0)
    while True:
        try:
            outcome = await _find_outcome(context, coordinator)
            await context.config_times.wait_durable()
        except (CommandError, BackendError) as error:
            logger.warning(
                "Could not find out the outcome of a migration",
                namespace=coordinator.namespace,
                migration=str(coordinator.id),
                error=str(error),
            )
        else:
            if outcome is not None:
                return outcome
        await backoff.pause()


async def _find_outcome(context: ShardContext, coordinator: MigrationCoordinatorDocument) -> bool | None:
    """Whether it was committed; None if the chunks changed in the meantime and the check has to be repeated."""
    catalog = await context.catalog()
    chunk = await _chunk_of_donor(catalog, coordinator)
    if isinstance(chunk, bool):
        return chunk
    await catalog.commit(
        {
            "_configsvrEnsureChunkVersionIsGreaterThan": coordinator.namespace,
            "minKey": raw_document(chunk.min),
            "maxKey": raw_document(chunk.max),
            "version": coordinator.chunk_version.to_document(),
            "collectionUUID": Binary.from_uuid(coordinator.collection_uuid),
        }
    )
    chunk = await _chunk_of_donor(catalog, coordinator)
    if isinstance(chunk, bool):
        return chunk
    return False if chunk.version > coordinator.chunk_version.packed else None


async def _chunk_of_donor(catalog: Catalog, coordinator: MigrationCoordinatorDocument) -> RoutedChunk | bool:
    """Return the donor's chunk in which the range begins or, if there is none, whether the range has moved."""
    table: RoutingTable | None = await catalog.read(read_routing(coordinator.namespace))
    if table is None or table.collection.uuid != coordinator.collection_uuid:
        return False  # the collection was dropped, so no shard owns the range
    chunk = table.chunk_for_key(table.key_pattern.key_bytes(extend_bound(coordinator.range.min, table.key_pattern)))
    return chunk if chunk.shard == coordinator.donor else True
