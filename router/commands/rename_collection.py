"""``renameCollection``."""

from router import arguments
from router.ddl.coordinated import command_body
from router.ddl.send import send_to_primary_shard
from router.operation import Operation
from router.registry import Reply, command
from sharding.namespace import Namespace
from wire.error_codes import ErrorCode
from wire.errors import CommandError


@command("renameCollection", admin_only=True)
async def rename_collection(operation: Operation) -> Reply:
    """Gives a collection another name; both databases must have the same primary shard."""
    request = operation.request
    source = _namespace(arguments.string(request, b"renameCollection"), "source")
    target = _namespace(arguments.string(request, b"to"), "target")
    if source == target:
        raise CommandError(ErrorCode.IllegalOperation, "Can't rename a collection to itself")
    # A database can't be created by the shard that renames: it has to be there, with a primary shard, before.
    routing_cache = operation.router.routing
    await routing_cache.database(source.db)
    await routing_cache.database(target.db, create=True)
    renaming = {
        "_shardsvrRenameCollection": source.collection,
        "to": str(target),
        "dropTarget": arguments.boolean(request, b"dropTarget"),
        "stayTemp": arguments.boolean(request, b"stayTemp"),
    }
    try:
        await send_to_primary_shard(operation, source.db, command_body(source.db, renaming))
    finally:
        routing_cache.forget_collection(str(source))
        routing_cache.forget_collection(str(target))
    return {}


def _namespace(text: str, role: str) -> Namespace:
    """The source or the target.

    Raises:
        CommandError: InvalidNamespace.
    """
    try:
        return Namespace.parse_collection(text)
    except CommandError as error:
        raise CommandError(error.code, f"Invalid {role} namespace: {text}") from error
