"""``renameCollection``."""

from typing import Any, Final

from bson.binary import UUID_SUBTYPE, Binary

from shardwright.router.commands.command_registry import command
from shardwright.router.ddl.coordinated import MAJORITY, command_body
from shardwright.router.operations.operation import Operation
from shardwright.router.operations.routed_sending import send_to_primary_shard
from shardwright.router.operations.uuid_mismatch import COLLECTION_UUID
from shardwright.router.replies.own_reply import Reply
from shardwright.sharding.arguments import named_in_full
from shardwright.sharding.namespace import Namespace
from shardwright.wire.arguments import Arguments
from shardwright.wire.database_names import is_valid_database_name
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.request import Request

_KNOWN: Final = frozenset({b"renameCollection", b"to", b"dropTarget", b"stayTemp", b"collectionUUID"})


@command("renameCollection", admin_only=True, supports_write_concern=True)
async def rename_collection(operation: Operation) -> Reply:
    """Gives a collection another name; both databases must have the same primary shard."""
    request = operation.request
    Arguments.of(request).refuse_unknown(_KNOWN)
    source = named_in_full(request)
    _refuse_null_characters(str(source))
    target = _target(request)
    if source == target:
        raise CommandError(ErrorCode.IllegalOperation, "Can't rename a collection to itself")
    _check_writable(source, "source")
    _check_writable(target, "target")
    await _have_database(operation, target.db, like=source.db)
    renaming = {
        "_shardsvrRenameCollection": source.collection,
        "to": str(target),
        **_drop_target(Arguments.of(request)),
        "stayTemp": Arguments.of(request).boolean(b"stayTemp"),
    }
    expected = Arguments.of(request).maybe_uuid(COLLECTION_UUID)
    if expected is not None:
        renaming["expectedSourceUUID"] = Binary.from_uuid(expected)
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


def _drop_target(arguments: Arguments) -> dict[str, Any]:
    """Whether the rename may replace what has the new name; as a UUID, only the collection that has it."""
    value = arguments.value(b"dropTarget") if arguments.has(b"dropTarget") else False
    if isinstance(value, Binary) and value.subtype == UUID_SUBTYPE:
        return {"dropTarget": True, "expectedTargetUUID": Binary.from_uuid(arguments.uuid(b"dropTarget"))}
    return {"dropTarget": arguments.boolean(b"dropTarget")}


def _target(request: Request) -> Namespace:
    """Its new name.

    Raises:
        CommandError: 40414, TypeMismatch, InvalidNamespace.
    """
    text = Arguments.of(request).namespace(b"to")
    _refuse_null_characters(text)
    namespace = Namespace.parse(text)
    if not namespace.collection or not is_valid_database_name(namespace.db):
        raise CommandError(ErrorCode.InvalidNamespace, f"Invalid target namespace: {text}")
    return namespace


def _refuse_null_characters(name: str) -> None:
    if "\0" in name:
        raise CommandError(ErrorCode.InvalidNamespace, "namespaces cannot have embedded null characters")


def _check_writable(namespace: Namespace, role: str) -> None:
    """Refuse names of collections that clients may not write.

    Raises:
        CommandError: IllegalOperation.
    """
    try:
        if namespace.collection.startswith("."):
            raise CommandError(ErrorCode.InvalidNamespace, f"Invalid collection name: {namespace.collection}")
        namespace.check_writable()
    except CommandError as error:
        raise CommandError(ErrorCode.IllegalOperation, f"error with {role} namespace: {error.message}") from error
