"""``create``: collections, views and time-series collections."""

import bson

from shardwright.router.commands.command_registry import command
from shardwright.router.ddl.collection_options import are_options_equal
from shardwright.router.operations.listed_collection import listed_collection
from shardwright.router.operations.operation import Operation
from shardwright.router.operations.routed_sending import send_to_primary_shard
from shardwright.router.replies.own_reply import Reply
from shardwright.router.replies.reply_fields import answer_of
from shardwright.sharding.bson_text import document_text
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError


@command("create", api_versions=("1",), supports_write_concern=True)
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
    """Accept an existing collection if it has the options that the client asks for.

    Raises:
        CommandError: NamespaceExists, it has others.
    """
    request = operation.request
    listed = await listed_collection(operation, await operation.context.routing.collection(operation.namespace))
    if listed is None:
        raise error  # dropped meanwhile
    options = listed["options"]
    if not are_options_equal(request.document, options):
        raise CommandError(
            ErrorCode.NamespaceExists,
            f"namespace {operation.namespace} already exists, but with different options: "
            f"{document_text(bson.encode(options))}",
        )
