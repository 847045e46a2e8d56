"""The chunks of the new key: given by the caller, or planned from zones and a sample of the documents."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from bson.binary import Binary
from bson.objectid import ObjectId
from bson.timestamp import Timestamp

from shardwright.configd.resharding.participants import together
from shardwright.configd.term.term import Term
from shardwright.sharding.catalog.shard_entry import ShardEntry
from shardwright.sharding.chunks import ChunkPlacement
from shardwright.sharding.initial_chunks import PlannedChunk, ZoneRange
from shardwright.sharding.resharding.operation_document import ReshardingOperation
from shardwright.sharding.resharding.split import SAMPLES_PER_CHUNK, plan_chunks
from shardwright.sharding.routing_table import RoutingTable
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.sharding.sharded_collection import ShardedCollection
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import encode_document

_SAMPLES_MAX: Final = 100_000
_SAMPLES_PER_SHARD_MAX: Final = 20_000
"""Maximum sample from one shard; a single reply has to hold it."""

_FIRST: Final = 1 << 32
"""The packed version 1|0."""


async def plan(term: Term, operation: ReshardingOperation) -> list[PlannedChunk]:
    """Plan the chunks of the new key.

    Raises:
        CommandError: 4952606, there are too few different keys; 4952607, a zone has no shard; BadValue, the given
            chunks do not cover the whole key space once; ShardKeyNotFound, a document has an array for a key.
    """
    if operation.preset_chunks is not None:
        return _preset(operation, operation.preset_chunks)
    pattern = operation.participation.key
    shards = [each for each in await term.catalog.shards() if not each.is_draining]
    count = operation.chunk_count or int(
        await term.catalog.count("chunks", {"uuid": Binary.from_uuid(operation.participation.source_uuid)})
    )
    samples = await _sample(term, operation, count * SAMPLES_PER_CHUNK) if count > 1 else []
    zones = [zone_range(pattern, zone) for zone in operation.zones or ()]
    return plan_chunks(pattern, count, samples, [each.id for each in shards], zones, _shards_of_zone(shards))


def zone_range(pattern: ShardKeyPattern, zone: Mapping[str, Any]) -> ZoneRange:
    """Read a zone of the request, with its bounds extended to full shard keys.

    Raises ShardKeyNotFound and others if the bounds are not keys.
    """
    low, high = (pattern.extend_range_bound(encode_document(zone[name])) for name in ("min", "max"))
    return ZoneRange(low, high, zone["zone"])


def _shards_of_zone(shards: Sequence[ShardEntry]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for shard in shards:
        for zone in shard.tags:
            found.setdefault(zone, []).append(shard.id)
    return found


def _preset(operation: ReshardingOperation, chunks: Sequence[Mapping[str, Any]]) -> list[PlannedChunk]:
    planned = [
        PlannedChunk(encode_document(each["min"]), encode_document(each["max"]), str(each["recipientShardId"]))
        for each in chunks
    ]
    told = operation.participation
    collection = ShardedCollection(told.temporary, told.id, ObjectId(), Timestamp(1, 1), told.key)
    placements = (ChunkPlacement(each.min, each.max, each.shard, _FIRST + n, ()) for n, each in enumerate(planned))
    try:
        # Building a table fails unless the chunks cover the whole key space exactly once.
        RoutingTable.build(collection, placements)
    except CommandError as error:
        raise CommandError(ErrorCode.BadValue, f"The preset chunks are not valid: {error}") from error
    return planned


async def _sample(term: Term, operation: ReshardingOperation, count: int) -> list[bytes]:
    """Return shard keys of random documents, from each donor in proportion to its number of documents."""
    namespace, pattern = operation.namespace, operation.participation.key
    sizes: dict[str, int] = {}
    keys: list[bytes] = []
    donors = operation.participation.donors

    async def measure(donor: str) -> None:
        reply = await ask(donor, {"count": namespace.collection})
        sizes[donor] = int(reply["n"])

    async def sample(donor: str) -> None:
        share = min(_SAMPLES_MAX, count) * sizes[donor] // total + 1
        size = min(share, _SAMPLES_PER_SHARD_MAX)
        fields = {each.name.decode(): 1 for each in pattern.fields}
        if not any(each.path[0] == b"_id" for each in pattern.fields):
            fields["_id"] = 0
        pipeline = [{"$sample": {"size": size}}, {"$project": fields}]
        # The batch may hold one more than the sample, so that the cursor ends with it, unless the keys are too large.
        # An open cursor would block range deletions of the collection.
        aggregate = {"aggregate": namespace.collection, "pipeline": pipeline, "cursor": {"batchSize": size + 1}}
        cursor = (await ask(donor, aggregate))["cursor"]
        if cursor["id"]:
            await ask(donor, {"killCursors": namespace.collection, "cursors": [cursor["id"]]})
        keys.extend(pattern.extract_from_document(encode_document(each)) for each in cursor["firstBatch"])

    async def ask(donor: str, command: Mapping[str, Any]) -> dict[str, Any]:
        return await term.shards.command(await term.catalog.shard(donor), namespace.db, command)

    await together(donors, measure)
    total = max(sum(sizes.values()), 1)
    await together(donors, sample)
    return keys
