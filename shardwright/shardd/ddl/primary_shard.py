"""Whether a database is still the one that the router knew, once a change to it has got its lock."""

from shardwright.shardd.context.shard_context import ShardContext
from shardwright.shardd.metadata.stale_errors import stale_database
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.versions import DatabaseVersion


async def check_is_same_database(context: ShardContext, namespace: Namespace, received: DatabaseVersion) -> None:
    """Refuse a change that has waited for its lock while the database moved to another shard, or was dropped.

    Args:
        context: this shard daemon's context.
        namespace: the collection or database to change.
        received: the version by which the change was sent here.

    Raises:
        StaleError: StaleDbVersion, so that the router reads the database's entry again; or whatever a refresh raises.
    """
    if namespace.is_internal:
        return
    state = context.database(namespace.db)
    if state.entry is None:
        await context.refresher.refresh_database(state)
    wanted = None if state.entry is None else state.entry.version
    if wanted is None or not received.matches(wanted):
        raise stale_database(namespace.db, received, wanted, may_shard_be_stale=False)
