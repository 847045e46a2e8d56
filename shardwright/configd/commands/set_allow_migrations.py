"""``_configsvrSetAllowMigrations``: forbid migrations of a collection, or allow them again."""

from functools import partial
from typing import Any

from shardwright.configd.catalog.collection_chunks import CollectionChunks
from shardwright.configd.catalog.transactions import Transaction
from shardwright.configd.commands.command_registry import config_command
from shardwright.configd.commands.operation import Operation
from shardwright.configd.primary.shard_refreshes import refresh_shards
from shardwright.daemon.sidecar.command_sessions import CommandSession
from shardwright.sharding.catalog.collection_entry import CollectionEntry
from shardwright.sharding.chunk_version_bumps import bump_minor
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError


@config_command("_configsvrSetAllowMigrations")
async def set_allow_migrations(operation: Operation) -> dict[str, Any]:
    """Forbid migrations of a collection, or allow them again.

    The shards that own chunks have refreshed when this returns. A donor that thereby learns that its migration is
    forbidden aborts it unless it has reached the commit, where it is refused.

    A command with a session is executed once, so that one which arrives late does not undo a later one.

    Raises:
        CommandError: NamespaceNotSharded, InvalidUUID; TransactionTooOld, the command comes late; a shard's error, in
            which case the change itself has been made.
    """
    namespace = operation.namespace
    allow = operation.arguments.boolean(b"allowMigrations", default=True)
    uuid = operation.arguments.maybe_uuid(b"collectionUUID")

    async def work(transaction: Transaction, *, is_executed: bool) -> list[str]:
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
        chunks = CollectionChunks(transaction, collection)
        if is_executed:
            return await chunks.owners()
        changed = {name: value for name, value in document.items() if name != "allowMigrations"}
        transaction.put("collections", [changed if allow else {**changed, "allowMigrations": False}])
        chunks.write(bump_minor(await chunks.newest()))
        return await chunks.owners()

    catalog, session = operation.primary.catalog, CommandSession.of(operation.request)
    async with operation.primary.locks.hold(f"ns:{namespace}"):
        is_executed = session is not None and await session.is_executed(catalog.mongod)
        owners = await catalog.transaction(partial(work, is_executed=is_executed))
        if session is not None and not is_executed:
            await session.record(catalog.mongod)
    await refresh_shards(operation.primary, str(namespace), owners)
    return {}
