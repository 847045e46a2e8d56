"""``_configsvrRefineCollectionShardKey``: add fields to the end of a collection's shard key."""

from dataclasses import replace
from typing import Any, Final

from bson.objectid import ObjectId

from shardwright.configd.catalog.collection_chunks import CollectionChunks, find_collection
from shardwright.configd.catalog.transactions import Transaction
from shardwright.configd.commands.command_registry import config_command
from shardwright.configd.commands.operation import Operation
from shardwright.sharding.catalog.collection_entry import CollectionEntry
from shardwright.sharding.catalog.tag_entry import TagEntry
from shardwright.sharding.refined_key import extend_bound, is_extended_by, refine_chunks
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.wire import rawbson
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError

CHUNK_BYTES_MAX: Final = 5 * 1024 * 1024
"""How large the chunks may be together: all of them are written by one ``applyOps``.

That holds mongod's global lock, and keeps all changes in WiredTiger's cache: with 0.25 GB, 10,000 chunks took 4
seconds, and 30,000 did not end within 45.
"""

_OPERATION_BYTES: Final = 100
"""What is written beside each chunk."""


@config_command("_configsvrRefineCollectionShardKey")
async def refine_collection_shard_key(operation: Operation) -> dict[str, Any]:
    """Extend the key and all bounds in one transaction; repeating this changes nothing.

    The collection gets another epoch and timestamp, so that shards and routers refuse the versions that they have.
    The shards that own chunks have checked before that an index supports the key.

    Raises:
        CommandError: NamespaceNotSharded; StaleEpoch, the collection is not the one meant; InvalidOptions, the key does
            not extend the present one; TransactionTooLarge, the chunks are more than `CHUNK_BYTES_MAX`.
    """
    namespace = str(operation.namespace)
    pattern = ShardKeyPattern.from_bson(operation.arguments.raw(b"key"))
    epoch = operation.arguments.object_id(b"epoch")
    catalog = operation.primary.catalog
    new_epoch = ObjectId()

    async def work(transaction: Transaction) -> CollectionEntry | None:
        before = await _collection(transaction, namespace)
        if before.key.document == pattern.document:
            return None
        _check(before, epoch, pattern)
        after = replace(before, key=pattern, epoch=new_epoch, timestamp=await catalog.now())
        await _refine(transaction, before, after)
        return before

    async with operation.primary.locks.hold(f"ns:{namespace}", "zones"):
        before = await catalog.transaction(work)
    if before is not None:
        await operation.log_changes("refineCollectionShardKey.start", namespace, _details(before, pattern, new_epoch))
        await operation.log_changes("refineCollectionShardKey.end", namespace, {})
    return {}


async def _collection(transaction: Transaction, namespace: str) -> CollectionEntry:
    collection = await find_collection(transaction, namespace)
    if collection is None:
        raise CommandError(ErrorCode.NamespaceNotSharded, f"Collection {namespace} is not sharded.")
    return collection


def _check(collection: CollectionEntry, epoch: ObjectId, pattern: ShardKeyPattern) -> None:
    if collection.epoch != epoch:
        raise CommandError(
            ErrorCode.StaleEpoch,
            f"refineCollectionShardKey namespace {collection.namespace} has a different epoch than mongos had in its "
            "routing table cache",
        )
    if not is_extended_by(collection.key, pattern):
        raise CommandError(
            ErrorCode.InvalidOptions,
            f"refineCollectionShardKey shard key {pattern} does not extend the current shard key {collection.key}",
        )


async def _refine(transaction: Transaction, before: CollectionEntry, after: CollectionEntry) -> None:
    document = await transaction.find_one("collections", {"_id": str(before.namespace)})
    assert document is not None
    changed = {
        "key": rawbson.raw_document(after.key.document),
        "lastmodEpoch": after.epoch,
        "timestamp": after.timestamp,
    }
    transaction.put("collections", [{**document, **changed}])
    await _refine_chunks(transaction, before, after)
    await _refine_zones(transaction, after)


async def _refine_chunks(transaction: Transaction, before: CollectionEntry, after: CollectionEntry) -> None:
    chunks = CollectionChunks(transaction, before)
    await chunks.newest()
    every = await chunks.every()
    changes = refine_chunks(every, after.key, epoch=after.epoch, timestamp=after.timestamp)
    size = sum(len(rawbson.encode_document(chunk.to_document())) + _OPERATION_BYTES for chunk in changes.written)
    if size > CHUNK_BYTES_MAX:
        raise CommandError(
            ErrorCode.TransactionTooLarge,
            f"the {len(every)} chunks of {before.namespace} are too large to be changed at once: {size} bytes, with at "
            f"most {CHUNK_BYTES_MAX}",
        )
    chunks.write(changes)


async def _refine_zones(transaction: Transaction, collection: CollectionEntry) -> None:
    for document in await transaction.find("tags", {"ns": str(collection.namespace)}):
        tag = TagEntry.from_document(document)
        low, high = (
            rawbson.raw_document(extend_bound(rawbson.encode_document(bound), collection.key))
            for bound in (tag.min, tag.max)
        )
        transaction.put("tags", [replace(tag, min=low, max=high).to_document()])


def _details(before: CollectionEntry, pattern: ShardKeyPattern, new_epoch: ObjectId) -> dict[str, Any]:
    return {
        "oldKey": rawbson.raw_document(before.key.document),
        "newKey": rawbson.raw_document(pattern.document),
        "oldEpoch": before.epoch,
        "newEpoch": new_epoch,
    }
