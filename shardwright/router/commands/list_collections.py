"""``listCollections``."""

from shardwright.router.commands.command_registry import command
from shardwright.router.operations.cursor_opening import open_on_one_shard
from shardwright.router.operations.operation import Operation
from shardwright.router.operations.retry import with_database
from shardwright.router.operations.scatter import forwarded
from shardwright.router.placement.database_routing import DatabaseRouting
from shardwright.router.replies.cursor_reply import empty_cursor
from shardwright.router.replies.own_reply import Reply
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
