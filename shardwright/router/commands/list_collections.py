"""``listCollections``."""

from shardwright.router.cursors.opening import open_on_one_shard
from shardwright.router.operation import Operation
from shardwright.router.reads.cursor_reply import empty_cursor
from shardwright.router.registry import Reply, command
from shardwright.router.routing.retry import with_database
from shardwright.router.routing.routing_cache import DatabaseRouting
from shardwright.router.sending.scatter import forwarded
from shardwright.sharding.namespace import Namespace
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError


@command("listCollections", reads=True, api_versions=("1",))
async def list_collections(operation: Operation) -> Reply:
    """The collections and views of a database, all of which its primary shard knows."""
    db = operation.request.db

    async def attempt(database: DatabaseRouting) -> bytes:
        frame = forwarded(operation, database.element)
        return await open_on_one_shard(operation, database.primary, frame, preference=operation.read_preference)

    try:
        return await with_database(operation, db, attempt)
    except CommandError as error:
        if error.code != ErrorCode.NamespaceNotFound:
            raise
        return empty_cursor(str(Namespace.list_collections(db)))
