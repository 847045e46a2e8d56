"""``listDatabases``."""

from router.ddl.database_list import merge_database_lists
from router.ddl.send import read_all_shards
from router.operation import Operation
from router.registry import Reply, command
from router.scatter import raise_worst
from router.shards import CONFIG_SHARD
from wire.arguments import Arguments
from wire.read_preference import ReadPreference

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
