"""``_configsvrClearJumboFlag``: allow a chunk that was too large to be moved again."""

from typing import Any

from shardwright.configd.catalog.collection_chunks import CollectionChunks, find_collection
from shardwright.configd.catalog.transactions import Transaction
from shardwright.configd.commands.command_registry import config_command
from shardwright.configd.commands.operation import Operation
from shardwright.sharding.chunk_version_bumps import clear_jumbo
from shardwright.sharding.chunks import ChunkRange
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError


@config_command("_configsvrClearJumboFlag")
async def clear_jumbo_flag(operation: Operation) -> dict[str, Any]:
    """Allow a chunk that was too large to be moved again.

    Raises:
        CommandError: NamespaceNotSharded, StaleEpoch; 51262, there is no such chunk.
    """
    namespace = operation.namespace
    arguments = operation.arguments
    epoch = arguments.object_id(b"epoch")
    low, high = arguments.raw(b"minKey"), arguments.raw(b"maxKey")

    async def work(transaction: Transaction) -> None:
        collection = await find_collection(transaction, str(namespace))
        if collection is None:
            raise CommandError(ErrorCode.NamespaceNotSharded, f"clearJumboFlag namespace {namespace} is not sharded")
        if collection.epoch != epoch:
            raise CommandError(
                ErrorCode.StaleEpoch,
                f"clearJumboFlag namespace {namespace} has a different epoch than mongos had in its routing table"
                " cache",
            )
        chunks = CollectionChunks(transaction, collection)
        encode = collection.key.key_bytes
        wanted = ChunkRange(low, high, encode(low), encode(high))
        chunks.write(
            clear_jumbo(
                await chunks.exactly(wanted),
                wanted,
                namespace=namespace,
                collection_version=await chunks.version(),
            )
        )

    names = (namespace.db, str(namespace))
    async with (
        operation.primary.shown_locks.shown(names, "conn", "clearJumboFlag"),
        operation.primary.locks.hold(f"ns:{namespace}"),
    ):
        await operation.primary.catalog.transaction(work)
    return {}
