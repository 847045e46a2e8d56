"""``_configsvrUpdateZoneKeyRange``: assign a range of a collection to a zone, or remove it from its zone."""

from typing import Any

from bson.objectid import ObjectId

from shardwright.configd.catalog.collection_chunks import find_collection
from shardwright.configd.catalog.refined_bounds import refine_zones
from shardwright.configd.catalog.renamed_zones import finish_renames
from shardwright.configd.catalog.transactions import Transaction
from shardwright.configd.catalog.zone_ranges import ZoneBounds
from shardwright.configd.commands.command_registry import config_command
from shardwright.configd.commands.operation import Operation
from shardwright.sharding.catalog.collection_entry import CollectionEntry
from shardwright.sharding.catalog.tag_entry import TagEntry
from shardwright.sharding.key_order import encode_key
from shardwright.wire import rawbson
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError


@config_command("_configsvrUpdateZoneKeyRange")
async def update_zone_key_range(operation: Operation) -> dict[str, Any]:
    """Assign the range, or with ``zone: null`` remove it. The collection need not be sharded yet.

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

    catalog = operation.primary.catalog
    async with operation.primary.locks.hold(f"ns:{namespace}", "zones"):
        await finish_renames(catalog, str(namespace))
        if (document := await catalog.find_by_id("collections", str(namespace))) is not None:
            await refine_zones(catalog, CollectionEntry.from_document(document))
        await catalog.transaction(work)
    return {}
