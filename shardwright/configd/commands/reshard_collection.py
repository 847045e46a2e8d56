"""``_configsvrReshardCollection``: give a sharded collection another shard key."""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any, Final
from uuid import uuid4

from shardwright.configd.catalog.zone_ranges import ZoneBounds
from shardwright.configd.commands.command_registry import config_command
from shardwright.configd.commands.operation import Operation
from shardwright.configd.resharding.coordinator import OperationOverError
from shardwright.configd.resharding.planned_chunks import zone_range
from shardwright.configd.resharding.running import reshard, run_operation
from shardwright.configd.resharding.store import ReshardingStore
from shardwright.sharding.catalog.collection_entry import CollectionEntry
from shardwright.sharding.resharding.operation_document import ReshardingOperation
from shardwright.sharding.resharding.participation import Participation
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.logger import get_logger
from shardwright.wire.rawbson import decode_document, is_string, raw_document

logger = get_logger("configd.resharding")

_CHUNKS_MAX: Final = 1_000_000


@config_command("_configsvrReshardCollection")
async def reshard_collection(operation: Operation) -> dict[str, Any]:
    """Reshard a collection, and return once that is done; a collection that has the key already is left alone.

    Raises:
        CommandError: NamespaceNotSharded; BadValue, an option is not allowed; 5808201, another operation is under way;
            ReshardCollectionAborted or the error for which the operation was aborted.
    """
    while True:
        try:
            await _reshard(operation)
        except OperationOverError:
            # It ended in the moment in which this request joined it. How it ended is seen in the catalog.
            logger.info("A resharding operation ended before it was joined", namespace=str(operation.namespace))
        else:
            return {}


async def _reshard(operation: Operation) -> None:
    namespace = str(operation.namespace)
    document = await operation.primary.catalog.find_by_id("collections", namespace)
    if document is None:
        raise CommandError(ErrorCode.NamespaceNotSharded, f"Collection {namespace} is not sharded.")
    entry = CollectionEntry.from_document(document)
    if entry.time_series is not None:
        raise CommandError(
            ErrorCode.NotImplemented,
            "reshardCollection command of a sharded time-series collection is not supported",
        )
    wanted = await _wanted(operation, entry)
    if wanted.participation.key.document != entry.key.document:
        await reshard(operation.primary, wanted)
    else:
        await _wait_committed(operation, entry)


async def _wait_committed(operation: Operation, entry: CollectionEntry) -> None:
    """Wait for the end of the operation that has given the collection its key, if that is still being carried out."""
    active = await ReshardingStore(operation.primary.catalog).active()
    if active is not None and active.id == entry.uuid:
        await run_operation(operation.primary, active)


async def _wanted(operation: Operation, entry: CollectionEntry) -> ReshardingOperation:
    arguments = operation.arguments
    raw_key = arguments.raw(b"key")
    if len(raw_key) <= 5:
        raise CommandError(ErrorCode.BadValue, "Shard key is empty")
    pattern = ShardKeyPattern.from_bson(raw_key)
    if arguments.boolean(b"unique"):
        raise CommandError(ErrorCode.BadValue, "The unique field must be false")
    collation = arguments.maybe_raw(b"collation")
    if collation is not None and decode_document(collation) not in ({}, {"locale": "simple"}):
        raise CommandError(ErrorCode.BadValue, 'The collation of a shard key must be {locale: "simple"}')
    return ReshardingOperation(
        participation=Participation(
            arguments.maybe_uuid(b"reshardingUUID") or uuid4(), entry.namespace, entry.uuid, pattern, (), ()
        ),
        chunk_count=_chunk_count(operation),
        zones=await _zones(operation, pattern),
        preset_chunks=_preset(operation),
    )


def _chunk_count(operation: Operation) -> int | None:
    count = operation.arguments.maybe_integer(b"numInitialChunks")
    if count is not None and not 1 <= count <= _CHUNKS_MAX:
        raise CommandError(ErrorCode.BadValue, f"numInitialChunks must be between 1 and {_CHUNKS_MAX}")
    return count


async def _zones(operation: Operation, pattern: ShardKeyPattern) -> list[Mapping[str, Any]] | None:
    """The zones of the request, with full bounds.

    Raises:
        CommandError: BadValue, the collection has zones and the request has none, or a zone is incomplete or has arrays
            in its bounds; RangeOverlapConflict; ShardKeyNotFound and FailedToParse, bounds are not a range of the new
            key; InvalidOptions, they have no hash in its hashed field.
    """
    given = operation.arguments.maybe_raw_documents(b"zones")
    if given is None:
        if await operation.primary.catalog.find("tags", {"ns": str(operation.namespace)}):
            raise CommandError(ErrorCode.BadValue, "Must specify value for zones field")
        return None
    zones: list[Mapping[str, Any]] = []
    for raw in given:
        zone = decode_document(raw)
        if not is_string(zone.get("zone")) or not all(isinstance(zone.get(end), dict) for end in ("min", "max")):
            raise CommandError(ErrorCode.BadValue, "A zone must have the fields zone, min and max")
        full = zone_range(pattern, zone)
        if not (pattern.is_shard_key(full.min) and pattern.is_shard_key(full.max)):
            raise CommandError(ErrorCode.BadValue, "The bounds of a zone must not have arrays as values")
        ZoneBounds.parse(full.min, full.max).check_hashes(pattern)
        zones.append({"zone": full.zone, "min": raw_document(full.min), "max": raw_document(full.max)})
    _check_disjoint(pattern, zones)
    return zones


def _check_disjoint(pattern: ShardKeyPattern, zones: list[Mapping[str, Any]]) -> None:
    ranges = sorted((pattern.key_bytes(zone["min"].raw), pattern.key_bytes(zone["max"].raw)) for zone in zones)
    for (_, high), (low, _) in pairwise(ranges):
        if low < high:
            raise CommandError(ErrorCode.RangeOverlapConflict, "Zone ranges of the new shard key overlap")


def _preset(operation: Operation) -> list[Mapping[str, Any]] | None:
    """The chunks given by the caller. A genuine config server of MongoDB 6.0.5 does not survive an empty array.

    Raises:
        CommandError: BadValue, there is none, or one is incomplete, or there are other options.
    """
    given = operation.arguments.maybe_raw_documents(b"_presetReshardedChunks")
    if given is None:
        return None
    if operation.arguments.has(b"numInitialChunks"):
        raise CommandError(ErrorCode.BadValue, "numInitialChunks and _presetReshardedChunks exclude one another")
    chunks = [decode_document(each) for each in given]
    for chunk in chunks:
        is_complete = is_string(chunk.get("recipientShardId")) and {"min", "max"} <= chunk.keys()
        if not is_complete:
            raise CommandError(ErrorCode.BadValue, "A preset chunk must have the fields recipientShardId, min and max")
    if not chunks:
        raise CommandError(ErrorCode.BadValue, "_presetReshardedChunks must not be empty")
    return list(chunks)
