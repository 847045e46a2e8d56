"""``listDatabases``."""

from shardwright.router.commands.command_registry import command
from shardwright.router.ddl.database_list import merge_database_lists
from shardwright.router.operations.operation import Operation
from shardwright.router.operations.routed_sending import read_all_shards
from shardwright.router.placement.database_routing import CONFIG_SHARD
from shardwright.router.replies.own_reply import Reply
from shardwright.router.replies.worst_error import raise_worst
from shardwright.wire.arguments import Arguments
from shardwright.wire.read_preference import ReadPreference

_PRIMARY_PREFERRED = ReadPreference("primaryPreferred")


@command("listDatabases", aliases=("listdatabases",), admin_only=True, reads=True, api_versions=("1",))
async def list_databases(operation: Operation) -> Reply:
    """The databases of the cluster with their sizes. Each shard applies the client's filter to its own entries."""
    replies = await read_all_shards(operation, also=(CONFIG_SHARD,), preference=_PRIMARY_PREFERRED)
    raise_worst(replies)
    return merge_database_lists(
        {reply.shard_id: reply.get(b"databases") for reply in replies},
        names_only=Arguments.of(operation.request).boolean(b"nameOnly"),
    )
