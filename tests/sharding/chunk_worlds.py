"""Small collections of chunks for tests, on the shard key ``{x: 1}``."""

from collections.abc import Iterable
from itertools import count
from uuid import UUID

import bson
from bson.max_key import MaxKey
from bson.min_key import MinKey
from bson.objectid import ObjectId
from bson.timestamp import Timestamp

from shardwright.sharding.chunk_changes import ChunkChanges
from shardwright.sharding.chunks import Chunk, ChunkHistory, ChunkRange
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.routing_table import RoutingTable, ShardedCollection
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.sharding.versions import ChunkVersion

PATTERN = ShardKeyPattern.from_mapping({"x": 1})
EPOCH = ObjectId("6b003c51f6889f2ffd8ef265")
TIME = Timestamp(1000, 7)
COLLECTION = ShardedCollection(Namespace("d", "c"), UUID(int=1), EPOCH, TIME, PATTERN)
MIN, MAX = PATTERN.global_min(), PATTERN.global_max()

_ids = count(1)


def new_id() -> ObjectId:
    """A document id that no other test chunk has."""
    return ObjectId(next(_ids).to_bytes(12, "big"))


def bound(value: object) -> bytes:
    """A bound of the shard key."""
    return bson.encode({"x": value})


def key(value: object) -> bytes:
    """The key bytes of a value of the shard key."""
    return PATTERN.key_bytes(bound(value))


def span(low: object, high: object) -> ChunkRange:
    """A range of the shard key."""
    return ChunkRange.of(PATTERN, bound(low), bound(high))


def version(major: int, minor: int) -> ChunkVersion:
    """A version of `COLLECTION`."""
    return ChunkVersion(major, minor, EPOCH, TIME)


def chunk(low: object, high: object, shard: str, major: int, minor: int) -> Chunk:
    """A chunk of `COLLECTION` that has never moved."""
    return Chunk(
        new_id(),
        COLLECTION.uuid,
        bound(low),
        bound(high),
        shard,
        version(major, minor),
        (ChunkHistory(TIME, shard),),
    )


def whole(shard: str = "s1") -> Chunk:
    """The only chunk of a collection that has just been sharded."""
    return chunk(MinKey(), MaxKey(), shard, 1, 0)


def table_of(chunks: Iterable[Chunk]) -> RoutingTable:
    """A routing table built from all chunks."""
    return RoutingTable.build(COLLECTION, [each.placement for each in chunks])


def applied(chunks: Iterable[Chunk], changes: ChunkChanges) -> list[Chunk]:
    """The chunks after changes, in order of their ranges."""
    by_id = {each.id: each for each in chunks}
    for each in changes.deleted:
        del by_id[each.id]
    by_id |= {each.id: each for each in changes.written}
    return sorted(by_id.values(), key=lambda each: PATTERN.key_bytes(each.min))


def shape(chunks: Iterable[Chunk]) -> list[tuple[object, str, int, int]]:
    """Lower bound, shard and version of each chunk, for assertions."""
    return [(bson.decode(each.min)["x"], each.shard, each.version.major, each.version.minor) for each in chunks]
