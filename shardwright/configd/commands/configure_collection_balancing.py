"""``_configsvrConfigureCollectionBalancing``: settings of one collection that concern its chunks."""

from typing import Any, Final

from bson.int64 import Int64

from shardwright.configd.balancer.defragmentation.progress import DEFRAGMENTATION_FIELDS
from shardwright.configd.catalog.collection_chunks import CollectionChunks
from shardwright.configd.catalog.transactions import Transaction
from shardwright.configd.commands.command_registry import WriteConcernRule, config_command
from shardwright.configd.commands.operation import Operation
from shardwright.configd.primary.shard_refreshes import refresh_shards
from shardwright.sharding.bson_text import document_text
from shardwright.sharding.catalog.collection_entry import CollectionEntry
from shardwright.sharding.catalog.settings import CHUNK_SIZE_MB_MAX, CHUNK_SIZE_MB_MIN
from shardwright.sharding.chunk_version_bumps import bump_minor
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.logger import get_logger
from shardwright.wire.rawbson import encode_document

logger = get_logger("configd.balancer")

_OPTIONS: Final = (b"chunkSize", b"defragmentCollection", b"enableAutoSplitter")


@config_command("_configsvrConfigureCollectionBalancing", write_concern=WriteConcernRule.UNSUPPORTED)
async def configure_collection_balancing(operation: Operation) -> dict[str, Any]:
    """Set a collection's own chunk size, in MB (0 for that of the cluster), whether its chunks are split by size, and
    whether they are defragmented: that ends by itself, or when it is turned off.

    The shards that own chunks are made to refresh, so that auto-splitting goes by the new settings. One that cannot be
    reached learns of them with its next refresh.

    Raises:
        CommandError: InvalidOptions, no option or a chunk size out of range; NamespaceNotSharded.
    """
    namespace = str(operation.namespace)
    changes = _changes(operation)

    async def work(transaction: Transaction) -> list[str]:
        document = await transaction.find_one("collections", {"_id": namespace})
        if document is None:
            query = document_text(encode_document({"_id": namespace}))
            raise CommandError(
                ErrorCode.NamespaceNotSharded, f"Expected to match one doc for query {query} but matched 0"
            )
        kept = {name: value for name, value in document.items() if name not in changes}
        transaction.put("collections", [{**kept, **{name: new for name, new in changes.items() if new is not None}}])
        chunks = CollectionChunks(transaction, CollectionEntry.from_document(document))
        chunks.write(bump_minor(await chunks.newest()))
        return await chunks.owners()

    async with operation.primary.locks.hold(f"ns:{namespace}"):
        owners = await operation.primary.catalog.transaction(work)
    operation.primary.balancer_rounds.want_next()
    try:
        await refresh_shards(operation.primary, namespace, owners)
    except CommandError as error:
        logger.warning("A shard does not know the settings of a collection yet", namespace=namespace, error=str(error))
    return {}


def _changes(operation: Operation) -> dict[str, Any]:
    """The fields of the collection's entry to set, or, if None, to remove."""
    arguments = operation.arguments
    if not any(arguments.has(option) for option in _OPTIONS):
        raise CommandError(ErrorCode.InvalidOptions, "invalid configure collection balancing update")
    changes: dict[str, Any] = {}
    size = arguments.maybe_number(b"chunkSize")
    if size is not None:
        if size and not CHUNK_SIZE_MB_MIN <= size <= CHUNK_SIZE_MB_MAX:
            raise CommandError(ErrorCode.InvalidOptions, f"Chunk size '{size:.0f}' out of range [1MB, 1GB]")
        changes["maxChunkSizeBytes"] = Int64(int(size) << 20) if size else None
    if arguments.has(b"enableAutoSplitter"):
        changes["noAutoSplit"] = not arguments.boolean(b"enableAutoSplitter")
    if arguments.has(b"defragmentCollection"):
        is_wanted = arguments.boolean(b"defragmentCollection")
        changes |= {"defragmentCollection": True} if is_wanted else dict.fromkeys(DEFRAGMENTATION_FIELDS)
    return changes
