"""The zones of shards, and the zone ranges of collections."""

from functools import partial
from typing import Any, Final

from bson.objectid import ObjectId

from shardwright.configd.catalog.chunks import find_collection, refine_zones
from shardwright.configd.catalog.transactions import Transaction
from shardwright.configd.catalog.zones import ZoneBounds, finish_renames
from shardwright.configd.commands.operation import Operation
from shardwright.daemon.sidecar.command_sessions import CommandSession, execute_once
from shardwright.sharding.catalog.collection_entry import CollectionEntry
from shardwright.sharding.catalog.tag_entry import TagEntry
from shardwright.sharding.key_order import encode_key
from shardwright.wire import rawbson
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError


async def add_shard_to_zone(operation: Operation) -> dict[str, Any]:
    """Add the shard to the zone, which is created with its first shard; raises ShardNotFound."""
    shard, zone = operation.subject, operation.arguments.string(b"zone")

    async def work(transaction: Transaction) -> None:
        document = await transaction.find_one("shards", {"_id": shard})
        if document is None:
            raise CommandError(ErrorCode.ShardNotFound, f"shard {shard} does not exist")
        zones = document.get("tags", [])
        if zone not in zones:
            transaction.put("shards", [{**document, "tags": [*zones, zone]}])

    async with operation.term.locks.hold("zones"):
        await operation.term.catalog.transaction(work)
    return {}


async def remove_shard_from_zone(operation: Operation) -> dict[str, Any]:
    """Remove the shard from the zone.

    Raises:
        CommandError: ShardNotFound; ZoneStillInUse, it is the last shard of a zone that has ranges.
    """
    shard, zone = operation.subject, operation.arguments.string(b"zone")

    async def work(transaction: Transaction) -> None:
        document = await transaction.find_one("shards", {"_id": shard})
        if document is None:
            raise CommandError(ErrorCode.ShardNotFound, f"shard {shard} does not exist")
        if zone not in document.get("tags", ()):
            return
        is_last = await transaction.find_one("shards", {"tags": zone, "_id": {"$ne": shard}}) is None
        if is_last and await transaction.find_one("tags", {"tag": zone}) is not None:
            raise CommandError(
                ErrorCode.ZoneStillInUse, "cannot remove a shard from zone if a chunk range is associated with it"
            )
        zones = [other for other in document["tags"] if other != zone]
        transaction.put("shards", [{**document, "tags": zones}])

    async with operation.term.locks.hold("zones"):
        await operation.term.catalog.transaction(work)
    return {}


async def update_zone_key_range(operation: Operation) -> dict[str, Any]:
    """Assign the range to a zone, or remove it with ``zone: null``. The collection may still be unsharded.

    Raises:
        CommandError: ZoneNotFound; RangeOverlapConflict; ShardKeyNotFound and FailedToParse, the bounds are not a range
            of the shard key; InvalidOptions, they have no hash in its hashed field.
    """
    namespace = operation.namespace
    arguments = operation.arguments
    bounds = ZoneBounds.parse(arguments.raw(b"min"), arguments.raw(b"max"))
    zone = None if arguments.is_null(b"zone") else arguments.string(b"zone")

    async def work(transaction: Transaction) -> None:
        collection = await find_collection(transaction, str(namespace))
        full = bounds if collection is None else bounds.extended_to(collection.key, namespace)
        low, high = rawbson.raw_document(full.min), rawbson.raw_document(full.max)
        if zone is None:
            await transaction.delete_matching("tags", {"ns": str(namespace), "min": low, "max": high})
            return
        if await transaction.find_one("shards", {"tags": zone}) is None:
            raise CommandError(ErrorCode.ZoneNotFound, f"zone {zone} does not exist")
        if collection is not None:
            full.check_hashes(collection.key)
        others = [
            TagEntry.from_document(document)
            for document in await transaction.find("tags", {"ns": str(namespace)}, sort={"min": 1})
        ]
        full.check_against(others, zone)
        start = encode_key(full.min)
        existing = next((other for other in others if encode_key(rawbson.encode_document(other.min)) == start), None)
        entry = TagEntry(existing.id if existing else ObjectId(), namespace, low, high, zone)
        transaction.put("tags", [entry.to_document()])

    catalog = operation.term.catalog
    async with operation.term.locks.hold(f"ns:{namespace}", "zones"):
        await finish_renames(catalog, str(namespace))
        if (document := await catalog.find_by_id("collections", str(namespace))) is not None:
            await refine_zones(catalog, CollectionEntry.from_document(document))
        await catalog.transaction(work)
    return {}


_NOT_RETRYABLE: Final = 5748800
"""MongoDB's code for a command that must be sent as a retryable write but was not."""


async def remove_tags(operation: Operation) -> dict[str, Any]:
    """Remove all zone ranges of the collection.

    The command is executed once, so that a late one does not remove ranges that have been added since.

    Raises:
        CommandError: 5748800, there is no session or transaction number; TransactionTooOld, the command comes late.
    """
    namespace = str(operation.namespace)
    session = CommandSession.of(operation.request)
    if session is None:
        raise CommandError(_NOT_RETRYABLE, f"{operation.name} must be run as a retryable write")

    catalog = operation.term.catalog
    async with operation.term.locks.hold("zones"):
        await execute_once(catalog.mongod, session, partial(catalog.delete, "tags", {"ns": namespace}))
    return {}
