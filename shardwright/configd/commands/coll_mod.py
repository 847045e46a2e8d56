"""``_configsvrCollMod``: change what the catalog says about a time-series collection."""

from typing import Any

from shardwright.configd.catalog.collection_chunks import CollectionChunks
from shardwright.configd.catalog.transactions import Transaction
from shardwright.configd.commands.command_registry import config_command
from shardwright.configd.commands.operation import Operation
from shardwright.sharding.arguments import own_collection
from shardwright.sharding.catalog.collection_entry import CollectionEntry
from shardwright.sharding.chunk_version_bumps import bump_each_shard
from shardwright.sharding.time_series import GRANULARITIES, TimeSeriesFields, is_coarser
from shardwright.wire.arguments import Arguments
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError


@config_command("_configsvrCollMod", admin_only=False)
async def coll_mod(operation: Operation) -> dict[str, Any]:
    """Make the granularity of a collection of buckets coarser, in versions that are new to all owners of chunks.

    The database is that of the collection, as in MongoDB. Nothing changes if the request is repeated, even after later
    ones, or if it is about something else: the catalog has no other options of a collection.

    Raises:
        CommandError: NamespaceNotSharded; InvalidOptions, it holds no buckets; BadValue, it is not a granularity.
    """
    namespace = str(own_collection(operation.request))
    granularity = _granularity(operation.arguments.nested(b"collModRequest"))

    async def work(transaction: Transaction) -> None:
        document = await transaction.find_one("collections", {"_id": namespace})
        if document is None:
            raise CommandError(ErrorCode.NamespaceNotSharded, f"Collection {namespace} is not sharded.")
        collection = CollectionEntry.from_document(document)
        if granularity is not None and is_coarser(granularity, _fields(collection).granularity):
            changed = _fields(collection).with_granularity(granularity)
            transaction.put("collections", [{**document, "timeseriesFields": changed.to_document()}])
            chunks = CollectionChunks(transaction, collection)
            chunks.write(bump_each_shard(await chunks.first_of_each_owner(), await chunks.version()))

    async with operation.primary.locks.hold(f"ns:{namespace}"):
        await operation.primary.catalog.transaction(work)
    return {}


def _granularity(change: Arguments) -> str | None:
    options = change.maybe_nested(b"timeseries")
    granularity = None if options is None else options.maybe_string(b"granularity")
    if granularity is not None and granularity not in GRANULARITIES:
        raise CommandError(
            ErrorCode.BadValue,
            f"Enumeration value '{granularity}' for field '_configsvrCollMod.collModRequest.timeseries.granularity' is "
            "not a valid value.",
        )
    return granularity


def _fields(collection: CollectionEntry) -> TimeSeriesFields:
    if collection.time_series is None:
        raise CommandError(ErrorCode.InvalidOptions, f"Collection {collection.namespace} holds no buckets.")
    return collection.time_series
