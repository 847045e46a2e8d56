"""What is checked before a collection is renamed; nothing has been changed by then."""

from shardwright.shardd.context.shard_context import ShardContext
from shardwright.shardd.local_mongod.local_collections import describe
from shardwright.sharding.catalog.reads import read_database
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.routing_table import RoutingTable
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError


async def check_rename(
    context: ShardContext,
    source: Namespace,
    target: Namespace,
    source_table: RoutingTable | None,
    target_table: RoutingTable | None,
    *,
    drops_target: bool,
) -> None:
    """Refuse a rename that cannot be made. That of an unsharded collection to an unsharded one is left to mongod.

    Args:
        context: the context of the source database's primary shard.
        source: the collection's name.
        target: its new name.
        source_table: the routing table of the collection; None if it is not sharded.
        target_table: likewise, of what has the new name.
        drops_target: whether the rename may replace that.

    Raises:
        CommandError: CommandFailed, the databases have different primary shards, or differ though a collection is
            sharded; NamespaceNotFound; NamespaceExists; CommandNotSupportedOnView; InvalidNamespace; IllegalOperation,
            the collection holds the buckets of a time-series collection.
    """
    if target.db != source.db:
        await _check_databases(context, target, sharded=source_table or target_table)
    if target_table is not None and not drops_target:
        raise CommandError(
            ErrorCode.NamespaceExists, f"Sharded target collection {target} exists but dropTarget is not set"
        )
    if source_table is None and target_table is None:
        return await _check_zones(context, target, target_table)
    if source.is_time_series_buckets:
        raise CommandError(ErrorCode.IllegalOperation, "Renaming system.buckets collections is not allowed")
    if source_table is not None:
        target.check_shardable()
    local, replaced = [await describe(context.mongod, each) for each in (source, target)]
    if local is None or local.uuid is None:
        raise CommandError(ErrorCode.NamespaceNotFound, f"Collection {source} doesn't exist.")
    if replaced is not None and replaced.kind != "collection":
        raise CommandError(ErrorCode.CommandNotSupportedOnView, f"a view already exists with that name: {target}")
    if replaced is not None and not drops_target:
        raise CommandError(ErrorCode.NamespaceExists, "target namespace exists")
    await _check_zones(context, target, target_table)


async def _check_databases(context: ShardContext, target: Namespace, *, sharded: RoutingTable | None) -> None:
    if sharded is not None:
        raise CommandError(
            ErrorCode.CommandFailed,
            f"Source and destination collections must be on the same database because {sharded.namespace} is sharded.",
        )
    if not target.is_internal:  # those of the cluster's own databases are on the config servers
        entry = await (await context.catalog()).read(read_database(target.db))
        if entry is None or entry.primary == context.require_identity().shard_name:
            return
    raise CommandError(ErrorCode.CommandFailed, "Source and destination collections must be on same shard")


async def _check_zones(context: ShardContext, target: Namespace, table: RoutingTable | None) -> None:
    """Zones of a sharded target are dropped with it; others would be taken for those of the renamed collection."""
    if table is None and await (await context.catalog()).find("tags", {"ns": str(target)}):
        raise CommandError(
            ErrorCode.CommandFailed,
            f"Can't rename to target collection {target} because it must not have associated tags",
        )
