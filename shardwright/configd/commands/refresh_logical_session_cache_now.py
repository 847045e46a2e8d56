"""``refreshLogicalSessionCacheNow``: on a config server, sharding the collection of the sessions of all servers."""

from typing import Any

from shardwright.configd.commands.command_registry import WriteConcernRule, config_command
from shardwright.configd.commands.operation import Operation
from shardwright.configd.primary.sessions_collection import set_up_sessions_collection


@config_command("refreshLogicalSessionCacheNow", write_concern=WriteConcernRule.UNSUPPORTED)
async def refresh_logical_session_cache_now(operation: Operation) -> dict[str, Any]:
    """Shard ``config.system.sessions`` unless it is sharded; routers ask for it when they find that it is not.

    Raises:
        CommandError: ShardNotFound, there are no shards yet; or a shard's error.
    """
    await set_up_sessions_collection(operation.primary)
    return {}
