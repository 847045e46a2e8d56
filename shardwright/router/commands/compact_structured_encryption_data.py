"""``compactStructuredEncryptionData``, which the primary shard of the database runs."""

from shardwright.router.commands.command_registry import command
from shardwright.router.operations.operation import Operation
from shardwright.router.operations.retry import with_database
from shardwright.router.operations.scatter import forwarded, send_to_one
from shardwright.router.placement.database_routing import DatabaseRouting
from shardwright.router.replies.own_reply import Reply
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError


@command("compactStructuredEncryptionData")
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
