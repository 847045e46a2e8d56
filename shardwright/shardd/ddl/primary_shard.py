"""Whether a database still has this shard as its primary shard, once a change to it has got its lock."""

from dataclasses import replace

from shardwright.shardd.context.shard_context import ShardContext
from shardwright.shardd.metadata.stale_errors import stale_database
from shardwright.sharding.namespace import Namespace


async def check_is_primary_shard(context: ShardContext, namespace: Namespace) -> None:
    """Refuse a change that has waited for its lock while the database moved to another shard.

    Raises:
        StaleError: StaleDbVersion, so that the router sends the change to the new primary shard; or whatever a refresh
            raises.
    """
    if namespace.is_internal:
        return
    state = context.database(namespace.db)
    if state.entry is None:
        await context.refresher.refresh_database(state)
    entry = state.entry
    if entry is None or entry.primary == context.require_identity().shard_name:
        return
    received = replace(entry.version, last_mod=entry.version.last_mod - 1)
    raise stale_database(namespace.db, received, entry.version, may_shard_be_stale=False)
