"""``_configsvrRefineCollectionShardKey``: add fields to the end of a collection's shard key."""

from dataclasses import replace
from typing import Any

from bson.objectid import ObjectId

from shardwright.configd.catalog.catalog import Catalog
from shardwright.configd.catalog.collection_chunks import CollectionChunks, find_collection
from shardwright.configd.catalog.refined_bounds import refine_chunks, refine_zones
from shardwright.configd.catalog.transactions import Transaction
from shardwright.configd.commands.command_registry import config_command
from shardwright.configd.commands.operation import Operation
from shardwright.sharding.catalog.collection_entry import REFINING, CollectionEntry
from shardwright.sharding.refined_key import is_extended_by
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.wire import rawbson
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError


@config_command("_configsvrRefineCollectionShardKey")
async def refine_collection_shard_key(operation: Operation) -> dict[str, Any]:
    """Extend the key and all bounds; repeating this completes what has been begun, and changes nothing else.

    One transaction changes the collection's key, epoch and timestamp, so that shards and routers refuse the versions
    that they have. The bounds of the zones and of the chunks, however many they are, follow one by one: a transaction
    that changes all of them need not fit into the mongod's cache. Until all are extended, a mark in the entry makes
    readers extend those that they find. The shards that own chunks have checked before that an index supports the key.

    Raises:
        CommandError: NamespaceNotSharded; StaleEpoch, the collection is not the one meant; InvalidOptions, the key does
            not extend the present one.
    """
    namespace = str(operation.namespace)
    pattern = ShardKeyPattern.from_bson(operation.arguments.raw(b"key"))
    epoch = operation.arguments.object_id(b"epoch")
    catalog = operation.primary.catalog
    new_epoch = ObjectId()

    async def work(transaction: Transaction) -> CollectionEntry | None:
        before = await _collection(transaction, namespace)
        if before.key.fields == pattern.fields:
            return None
        _check(before, epoch, pattern)
        after = replace(before, key=pattern, epoch=new_epoch, timestamp=await catalog.now())
        await _refine(transaction, before, after)
        return before

    async with operation.primary.locks.hold(f"ns:{namespace}"):
        before = await catalog.transaction(work)
        if before is not None:
            details = _details(before, pattern, new_epoch)
            await operation.log_changes("refineCollectionShardKey.start", namespace, details)
        if await _refine_bounds(catalog, namespace):
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
        REFINING: rawbson.raw_document(before.key.document),
    }
    await CollectionChunks(transaction, before).newest()  # commits only if no chunk has changed
    transaction.put("collections", [{**document, **changed}])


async def _refine_bounds(catalog: Catalog, namespace: str) -> bool:
    """Extend the bounds that are not yet, and remove the mark; False if there was none."""
    document = await catalog.find_by_id("collections", namespace)
    if document is None or REFINING not in document:
        return False
    entry = CollectionEntry.from_document(document)
    await refine_zones(catalog, entry)
    await refine_chunks(catalog, entry)

    async def remove_mark(transaction: Transaction) -> None:
        present = await transaction.find_one("collections", {"_id": namespace})
        if present is not None:
            transaction.put("collections", [{name: each for name, each in present.items() if name != REFINING}])

    await catalog.transaction(remove_mark)
    return True


def _details(before: CollectionEntry, pattern: ShardKeyPattern, new_epoch: ObjectId) -> dict[str, Any]:
    return {
        "oldKey": rawbson.raw_document(before.key.document),
        "newKey": rawbson.raw_document(pattern.document),
        "oldEpoch": before.epoch,
        "newEpoch": new_epoch,
    }
