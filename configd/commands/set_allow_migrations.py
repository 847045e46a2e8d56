"""``_configsvrSetAllowMigrations``: keep the chunks of a collection where they are, or let them move again."""

from typing import Any

from configd.collection_chunks import CollectionChunks, find_collection
from configd.operation import Operation
from configd.registry import config_command
from configd.transactions import Transaction
from sharding.chunk_version_bumps import bump_minor
from wire.error_codes import ErrorCode
from wire.errors import CommandError


@config_command("_configsvrSetAllowMigrations")
async def set_allow_migrations(operation: Operation) -> dict[str, Any]:
    """Keep the chunks of a collection where they are, or let them move again.

    Raises:
        CommandError: NamespaceNotSharded, InvalidUUID.
    """
    namespace = operation.namespace
    allow = operation.arguments.boolean("allowMigrations", default=True)
    uuid = operation.arguments.maybe_uuid("collectionUUID")

    async def work(transaction: Transaction) -> None:
        collection = await find_collection(transaction, str(namespace))
        if collection is None:
            raise CommandError(ErrorCode.NamespaceNotSharded, f"Collection {namespace} is not sharded.")
        if uuid is not None and uuid != collection.uuid:
            raise CommandError(
                ErrorCode.InvalidUUID,
                f"Collection uuid {uuid} in the request does not match the current uuid {collection.uuid} for ns"
                f" {namespace}",
            )
        change = {"$unset": {"allowMigrations": ""}} if allow else {"$set": {"allowMigrations": False}}
        await transaction.update("collections", {"_id": str(namespace)}, change)
        chunks = CollectionChunks(transaction, collection)
        await chunks.write(bump_minor(await chunks.newest()))

    async with operation.primary.locks.hold(f"ns:{namespace}"):
        await operation.primary.catalog.transaction(work)
    return {}
