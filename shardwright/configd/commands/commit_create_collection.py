"""``_configsvrCommitCreateCollection``: add a collection, already created on all shards, to the catalog."""

from functools import partial
from typing import Any

from bson.binary import Binary

from shardwright.configd.catalog.collection_chunks import find_collection
from shardwright.configd.catalog.transactions import Transaction, check_shard_exists
from shardwright.configd.commands.command_registry import config_command
from shardwright.configd.commands.operation import Operation
from shardwright.daemon.sidecar.command_sessions import CommandSession, execute_once
from shardwright.sharding.bound_sizes import check_bounds_fit
from shardwright.sharding.catalog.collection_entry import CollectionEntry
from shardwright.sharding.catalog.tag_entry import TagEntry
from shardwright.sharding.chunks import ChunkPlacement
from shardwright.sharding.routing_table import RoutingTable
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import decode_document, raw_document


@config_command("_configsvrCommitCreateCollection")
async def commit_create_collection(operation: Operation) -> dict[str, Any]:
    """Add the collection with its first chunks; repeating this for the same collection changes nothing.

    A command with a session is executed once, so that one which arrives late does not add a collection that has been
    dropped since.

    Raises:
        CommandError: AlreadyInitialized, another collection of that name is sharded; ShardNotFound, an owner of chunks
            has been removed; InvalidOptions, a zone does not fit the shard key; BSONObjectTooLarge, the bounds of a
            chunk are too large; TransactionTooOld, the command comes late; NoSuchKey, TypeMismatch, BadValue or
            ConflictingOperationInProgress, the documents are not a valid catalog.
    """
    namespace = operation.namespace
    arguments = operation.arguments
    document = arguments.raw(b"collection")
    decoded = decode_document(document)
    collection = CollectionEntry.from_document(decoded)
    if collection.namespace != namespace:
        raise CommandError(ErrorCode.BadValue, f"The entry of {collection.namespace} was sent for {namespace}")
    chunks = operation.request.documents(b"chunks")
    # Building a table fails unless the chunks cover the whole key space exactly once.
    placements = [ChunkPlacement.from_raw(chunk) for chunk in chunks]
    RoutingTable.build(collection.sharded_collection(), placements)
    for placement in placements:
        check_bounds_fit(placement.min, placement.max)
    owners = sorted({placement.shard for placement in placements})

    async def work(transaction: Transaction, *, is_prepared: bool) -> bool:
        existing = await find_collection(transaction, str(namespace))
        if existing is not None:
            if existing.uuid != collection.uuid:
                raise CommandError(
                    ErrorCode.AlreadyInitialized,
                    f"{namespace} is sharded already, with UUID {existing.uuid} instead of {collection.uuid}",
                )
            return True
        for owner in owners:
            await check_shard_exists(transaction, owner)
        for tag in await transaction.find("tags", {"ns": str(namespace)}):  # there may be more than at the beginning
            TagEntry.from_document(tag).check_fits(collection.key)
        if is_prepared:
            transaction.put("collections", [decoded])
        return False

    async def create() -> None:
        if await catalog.transaction(partial(work, is_prepared=False)):
            return
        # Chunks have no meaning until the collection's entry exists. There may be some from an attempt that ended in
        # between.
        await catalog.delete("chunks", mine)
        await catalog.insert("chunks", [raw_document(chunk) for chunk in chunks])
        try:
            await catalog.transaction(partial(work, is_prepared=True))
        except CommandError as error:
            if error.code in (ErrorCode.ShardNotFound, ErrorCode.InvalidOptions):
                # They would forever be in the way of the removal of the other shards.
                await catalog.delete("chunks", mine)
            raise

    catalog = operation.primary.catalog
    mine = {"uuid": Binary.from_uuid(collection.uuid)}
    async with operation.primary.locks.hold(f"ns:{namespace}", "zones"):
        await execute_once(catalog.mongod, CommandSession.of(operation.request), create)
    return {}
