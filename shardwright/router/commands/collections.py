"""Commands on collections and views: create, modify, rename, validate, list, drop."""

from typing import Any, Final

import bson
from bson.binary import UUID_SUBTYPE, Binary
from bson.raw_bson import RawBSONDocument

from shardwright.router.access.needs import visible_collections
from shardwright.router.ddl.coordinated import MAJORITY, command_body, coordinated_command
from shardwright.router.ddl.merged_replies import are_options_equal, merge_validation
from shardwright.router.operations.cursor_opening import open_on_one_shard
from shardwright.router.operations.listed_collection import COLLECTION_UUID, listed_collection
from shardwright.router.operations.operation import Operation
from shardwright.router.operations.retry import with_database, with_routing
from shardwright.router.operations.scatter import (
    forwarded,
    read_all_shards,
    send_to_one,
    send_to_owning_shards,
    send_to_primary_shard,
)
from shardwright.router.placement.routing_info import CollectionRouting, DatabaseRouting
from shardwright.router.replies.cursor_reply import empty_cursor
from shardwright.router.replies.reply_builder import Reply
from shardwright.router.replies.shard_reply import answer_of, raise_worst
from shardwright.sharding.bson_text import document_text
from shardwright.sharding.namespace import Namespace, named_in_full, refuse_null_characters
from shardwright.wire.arguments import Arguments, Strictness
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import append, encode_elements, without
from shardwright.wire.request import Request, is_valid_database_name


async def create(operation: Operation) -> Reply:
    """Creates a collection or a view on the primary shard of its database, and the database if it does not exist."""
    namespace, db = operation.namespace, operation.request.db
    try:
        return answer_of(await send_to_primary_shard(operation, db, create_database=True, may_repeat=True))
    except CommandError as error:
        if error.code != ErrorCode.NamespaceExists or operation.transaction is not None:
            raise
        await _check_same(operation, error)
        return {}
    finally:
        operation.context.routing.forget_collection(namespace)


async def _check_same(operation: Operation, error: CommandError) -> None:
    """Accept an existing collection if it has the options of the client's command."""
    request = operation.request
    listed = await listed_collection(operation, await operation.context.routing.collection(operation.namespace))
    if listed is None:
        raise error  # dropped since the shard refused
    options = listed["options"]
    if not are_options_equal(request.document, options):
        raise CommandError(
            ErrorCode.NamespaceExists,
            f"namespace {operation.namespace} already exists, but with different options: "
            f"{document_text(bson.encode(options))}",
        )


TEMPORARY_COLLECTIONS: Final = frozenset({"admin.tempusers", "admin.temproles"})
"""Collections of mongorestore for users and roles, which it drops before and after ``_mergeAuthzCollections``.

A mongos refuses to drop them, so users can be restored through it only once.
"""


async def drop(operation: Operation) -> Reply:
    """Drops a collection wherever it is; one that does not exist is fine."""
    namespace, request = operation.namespace, operation.request
    if namespace in TEMPORARY_COLLECTIONS:
        return (await send_to_primary_shard(operation, request.db, may_repeat=True)).for_client()
    if request.db in ("config", "admin"):
        raise CommandError(
            ErrorCode.IllegalOperation, f"Cannot drop collection in '{request.db}' database in sharded cluster"
        )
    expected = Arguments.of(request).maybe_uuid(COLLECTION_UUID)
    uuid = {} if expected is None else {"collectionUUID": Binary.from_uuid(expected)}
    body = command_body(request.db, {"_shardsvrDropCollection": request.collection, **uuid})
    try:
        return answer_of(await send_to_primary_shard(operation, request.db, body, may_repeat=True))
    except CommandError as error:
        if error.code != ErrorCode.NamespaceNotFound:
            raise
        return {"info": "database does not exist"}
    finally:
        operation.context.routing.forget_collection(namespace)


COLL_MOD_ARGUMENTS: Final = (
    *("index", "validator", "validationLevel", "validationAction", "viewOn", "pipeline", "recordPreImages"),
    *("changeStreamPreAndPostImages", "expireAfterSeconds", "timeseries", "cappedSize", "cappedMax", "dryRun"),
    *("collectionUUID", "isTimeseriesNamespace"),
)


async def coll_mod(operation: Operation) -> Reply:
    """Changes options of a collection wherever it is."""
    namespace, request = operation.namespace, operation.request
    try:
        reply = await send_to_primary_shard(operation, request.db, coordinated_command(request, "_shardsvrCollMod"))
        return reply.for_client()
    finally:
        operation.context.routing.forget_collection(namespace)


async def convert_to_capped(operation: Operation) -> Reply:
    """Makes an unsharded collection capped."""

    async def attempt(routing: CollectionRouting) -> Reply:
        # If the collection was sharded since this routing was read, its shard refuses the unsharded version. No shard
        # would refuse if it is no longer sharded.
        routing = await operation.context.routing.confirmed_if_sharded(routing)
        if routing.is_sharded:
            message = f"You can't convertToCapped a sharded collection: {routing.namespace}"
            raise CommandError(ErrorCode.IllegalOperation, message)
        frame = forwarded(operation, routing.versions_for(routing.primary))
        return (await send_to_one(operation, routing.primary, frame)).for_client()

    return await with_routing(operation, operation.namespace, attempt)


async def rename_collection(operation: Operation) -> Reply:
    """Gives a collection another name; both databases must have the same primary shard."""
    request = operation.request
    source = named_in_full(request)
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
    """Create a database, unless it exists, with the primary shard of another, as renames only work within a shard."""
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
    """Return the arguments for replacing the target; a UUID limits that to the collection with this UUID."""
    value = arguments.value(b"dropTarget") if arguments.has(b"dropTarget") else False
    if isinstance(value, Binary) and value.subtype == UUID_SUBTYPE:
        return {"dropTarget": True, "expectedTargetUUID": Binary.from_uuid(arguments.uuid(b"dropTarget"))}
    return {"dropTarget": arguments.boolean(b"dropTarget")}


def _target(request: Request) -> Namespace:
    """Return the new name."""
    text = Arguments.of(request).namespace(b"to")
    refuse_null_characters(text)
    namespace = Namespace.parse(text)
    if not namespace.collection or not is_valid_database_name(namespace.db):
        raise CommandError(ErrorCode.InvalidNamespace, f"Invalid target namespace: {text}")
    return namespace


def _check_writable(namespace: Namespace, role: str) -> None:
    """Refuse namespaces that clients may not write."""
    try:
        if namespace.collection.startswith("."):
            raise CommandError(ErrorCode.InvalidNamespace, f"Invalid collection name: {namespace.collection}")
        namespace.check_writable()
    except CommandError as error:
        raise CommandError(ErrorCode.IllegalOperation, f"error with {role} namespace: {error.message}") from error


async def validate(operation: Operation) -> Reply:
    """Validates data and indexes of a collection on all shards that own a part of it."""
    _, replies = await send_to_owning_shards(
        operation, operation.namespace, preference=operation.read_preference, may_repeat=True
    )
    return merge_validation(replies)


async def validate_db_metadata(operation: Operation) -> Reply:
    """Reports collections and views that use features outside a version of the Stable API."""
    replies = await read_all_shards(operation)
    raise_worst(replies)
    reply: dict[str, Any] = {"apiVersionErrors": [error for each in replies for error in each.get(b"apiVersionErrors")]}
    if any(each.get(b"hasMoreErrors", False) for each in replies):
        reply["hasMoreErrors"] = True
    return reply


def check_cursor(arguments: Arguments) -> None:
    """Refuse a ``cursor`` argument that a shard would refuse, for replies that involve no shard.

    Raises:
        CommandError: TypeMismatch, 40415, 51024.
    """
    cursor = arguments.maybe_nested(b"cursor")
    if cursor is not None:
        cursor.refuse_unknown((b"batchSize",))
        cursor.maybe_integer(b"batchSize")


_AUTHORIZED: Final = b"authorizedCollections"


async def list_collections(operation: Operation) -> Reply:
    """The collections and views of a database, as its primary shard lists them."""
    db, body = operation.request.db, _body(operation)

    async def attempt(database: DatabaseRouting) -> bytes:
        frame = forwarded(operation, database.element, body)
        return await open_on_one_shard(operation, database.primary, frame, preference=operation.read_preference)

    try:
        return await with_database(operation, db, attempt)
    except CommandError as error:
        if error.code != ErrorCode.NamespaceNotFound:
            raise
        _check_arguments(operation.request)
        return empty_cursor(str(Namespace.list_collections(db)))


def _body(operation: Operation) -> bytes:
    """Return the command for a shard. ``authorizedCollections`` becomes a filter, as shards do not know the user."""
    request, access = operation.request, operation.context.access
    if access is None or request.get(_AUTHORIZED) is not True:
        return request.body
    visible = visible_collections(access.privileges_of(operation.client), request.db)
    given = request.raw_object(b"filter")
    query = visible if given is None else {"$and": [visible, RawBSONDocument(given)]}
    return append(without(request.body, {b"filter"}), encode_elements({"filter": query}))


def _check_arguments(request: Request) -> None:
    """Refuse the arguments that a primary shard would refuse, for a database that does not exist."""
    arguments = Arguments.of(request)
    arguments.refuse_unknown((b"listCollections", b"filter", b"nameOnly", _AUTHORIZED, b"cursor"))
    arguments.maybe_raw(b"filter")
    for name in (b"nameOnly", _AUTHORIZED):
        arguments.boolean(name, strictness=Strictness.BOOL)
    check_cursor(arguments)


async def compact_structured_encryption_data(operation: Operation) -> Reply:
    """Compacts the collections with the state of an encrypted collection."""
    db = operation.request.db

    async def attempt(routing: DatabaseRouting) -> Reply:
        frame = forwarded(operation, routing.element)
        return (await send_to_one(operation, routing.primary, frame)).for_client()

    try:
        return await with_database(operation, db, attempt)
    except CommandError as error:
        if error.code == ErrorCode.NamespaceNotFound:
            raise CommandError(ErrorCode.NamespaceNotFound, f"Database '{db}' does not exist") from error
        raise
