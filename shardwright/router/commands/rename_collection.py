"""``renameCollection``."""

from shardwright.router.commands.command_registry import command
from shardwright.router.ddl.coordinated import MAJORITY, command_body, refuse_collection_uuid
from shardwright.router.operations.operation import Operation
from shardwright.router.operations.routed_sending import send_to_primary_shard
from shardwright.router.replies.own_reply import Reply
from shardwright.sharding.namespace import Namespace
from shardwright.wire.arguments import Arguments
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError


@command("renameCollection", admin_only=True, supports_write_concern=True)
async def rename_collection(operation: Operation) -> Reply:
    """Gives a collection another name; both databases must have the same primary shard."""
    request = operation.request
    source = _namespace(Arguments.of(request).string(b"renameCollection"), "source")
    target = _namespace(Arguments.of(request).string(b"to"), "target")
    if source == target:
        raise CommandError(ErrorCode.IllegalOperation, "Can't rename a collection to itself")
    refuse_collection_uuid(request)
    await _have_database(operation, target.db, like=source.db)
    renaming = {
        "_shardsvrRenameCollection": source.collection,
        "to": str(target),
        "dropTarget": Arguments.of(request).boolean(b"dropTarget"),
        "stayTemp": Arguments.of(request).boolean(b"stayTemp"),
    }
    try:
        await send_to_primary_shard(operation, source.db, command_body(source.db, renaming))
    finally:
        operation.context.routing.forget_collection(str(source))
        operation.context.routing.forget_collection(str(target))
    return {}


async def _have_database(operation: Operation, db: str, *, like: str) -> None:
    """Create a database, unless it exists, on the primary shard of another one, since renames only work within a shard.

    Raises:
        CommandError: NamespaceNotFound, the other one does not exist.
    """
    routing_cache = operation.context.routing
    source = await routing_cache.database(like)
    try:
        await routing_cache.database(db)
    except CommandError as error:
        if error.code != ErrorCode.NamespaceNotFound:
            raise
        creation = {"_configsvrCreateDatabase": db, "primaryShardId": source.primary, "writeConcern": MAJORITY}
        await operation.context.catalog.command(creation)


def _namespace(text: str, role: str) -> Namespace:
    """The source or the target.

    Raises:
        CommandError: InvalidNamespace.
    """
    try:
        return Namespace.parse_collection(text)
    except CommandError as error:
        raise CommandError(error.code, f"Invalid {role} namespace: {text}") from error
