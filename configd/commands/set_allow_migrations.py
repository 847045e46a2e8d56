"""``_configsvrSetAllowMigrations``: keep the chunks of a collection where they are, or let them move again."""

from typing import Any

from configd.collection_chunks import CollectionChunks
from configd.operation import Operation
from configd.registry import config_command
from configd.transactions import Transaction
from sharding.catalog.collection_entry import CollectionEntry
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
        document = await transaction.find_one("collections", {"_id": str(namespace)})
        if document is None:
            raise CommandError(ErrorCode.NamespaceNotSharded, f"Collection {namespace} is not sharded.")
        collection = CollectionEntry.from_document(document)
        if uuid is not None and uuid != collection.uuid:
            raise CommandError(
                ErrorCode.InvalidUUID,
                f"Collection uuid {uuid} in the request does not match the current uuid {collection.uuid} for ns"
                f" {namespace}",
            )
        changed = {name: value for name, value in document.items() if name != "allowMigrations"}
        transaction.put("collections", [changed if allow else {**changed, "allowMigrations": False}])
        chunks = CollectionChunks(transaction, collection)
        chunks.write(bump_minor(await chunks.newest()))

    async with operation.primary.locks.hold(f"ns:{namespace}"):
        await operation.primary.catalog.transaction(work)
    return {}
