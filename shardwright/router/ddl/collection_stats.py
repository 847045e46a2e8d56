"""``collStats`` of a collection from those of its shards.

Shards are asked without a scale, so that what is divided by it here are sums and not sums of what was rounded.
"""

from collections.abc import Mapping
from typing import Any, Final

import bson

from shardwright.wire.arguments import clamp_int64
from shardwright.wire.errors import CommandError

_SCALE_TOO_SMALL: Final = 4390200
_SCALE_NOT_A_NUMBER: Final = 4390201

_SCALED_SUMS: Final = ("freeStorageSize", "size", "storageSize", "totalIndexSize", "totalSize")
_SUMS: Final = tuple(sorted(("count", "numOrphanDocs", *_SCALED_SUMS)))
_OF_FIRST_SHARD: Final = ("userFlags", "capped", "max", "paddingFactorNote", "indexDetails", "wiredTiger")
"""Fields that do not differ between shards, or of which mongos shows one shard's because they have no sum."""

_SCALED_OF_SHARD: Final = frozenset({*_SCALED_SUMS, "maxSize"})

Stats = Mapping[str, Any]


def scale_of(value: object) -> int:
    """The scale that a client asks for.

    Raises:
        CommandError: 4390200, it is less than one; 4390201, it is not a number.
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        scale = clamp_int64(value)
        if scale < 1:
            raise CommandError(_SCALE_TOO_SMALL, "scale has to be >= 1")
        return scale
    if value:
        raise CommandError(_SCALE_NOT_A_NUMBER, "scale has to be a number >= 1")
    return 1


def merge_collection_stats(namespace: str, shards: Mapping[str, Stats], *, scale: int, chunks: int) -> dict[str, Any]:
    """The statistics of a whole collection, without what comes before them in the reply (``sharded``, ``primary``).

    Args:
        namespace: the collection.
        shards: the unscaled statistics of each shard.
        scale: what sizes are divided by.
        chunks: how many there are.
    """
    merged: dict[str, Any] = {}
    for stats in shards.values():
        for name in _OF_FIRST_SHARD:
            if name in stats:
                merged.setdefault(name, stats[name])
    counts = {stats["nindexes"] for stats in shards.values() if stats.get("nindexes")}
    if len(counts) > 1:
        merged["warning"] = "indexes don't all match - ok if ensureIndex is running"
    merged["ns"] = namespace
    for name in _SUMS:
        if any(name in stats for stats in shards.values()):
            total = sum(int(stats.get(name, 0)) for stats in shards.values())
            merged[name] = total // scale if name in _SCALED_SUMS else total
    buckets = [stats["timeseries"] for stats in shards.values() if "timeseries" in stats]
    if buckets:
        merged["timeseries"] = _merge_time_series(buckets)
    merged["indexSizes"] = {name: size // scale for name, size in _index_sizes(shards).items()}
    merged["avgObjSize"] = _average_size(shards)
    merged["maxSize"] = bson.Int64(max((int(stats.get("maxSize", 0)) for stats in shards.values()), default=0) // scale)
    merged["nindexes"] = max(counts, default=0)
    merged["scaleFactor"] = scale
    merged["nchunks"] = chunks
    merged["shards"] = {shard: _scaled(stats, scale) for shard, stats in shards.items()}
    return merged


def _index_sizes(shards: Mapping[str, Stats]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for stats in shards.values():
        for name, size in stats.get("indexSizes", {}).items():
            sizes[name] = sizes.get(name, 0) + int(size)
    return dict(sorted(sizes.items()))


def _average_size(shards: Mapping[str, Stats]) -> float:
    """The average size of all documents, each shard's weighted by how many it has."""
    count = sum(int(stats.get("count", 0)) for stats in shards.values())
    size = sum(int(stats.get("avgObjSize", 0)) * int(stats.get("count", 0)) for stats in shards.values())
    return size / count if count else 0.0


def _merge_time_series(shards: list[Mapping[str, Any]]) -> dict[str, Any]:
    """The statistics of the buckets: everything is a number to be summed but their name and their average size."""
    names = sorted({name for stats in shards for name in stats if name not in ("bucketsNs", "avgBucketSize")})
    sums = {name: sum(int(stats.get(name, 0)) for stats in shards) for name in names}
    size = sum(int(stats.get("avgBucketSize", 0)) * int(stats.get("bucketCount", 0)) for stats in shards)
    count = sums.get("bucketCount", 0)
    sums["avgBucketSize"] = size // count if count else 0
    return {"bucketsNs": shards[0]["bucketsNs"], **dict(sorted(sums.items()))}


def _scaled(stats: Stats, scale: int) -> dict[str, Any]:
    """The statistics of one shard as it would have given them for a scale."""
    scaled: dict[str, Any] = {}
    for name, value in stats.items():
        if name in _SCALED_OF_SHARD:
            scaled[name] = int(value) // scale
        elif name == "scaleFactor":
            scaled[name] = scale
        elif name == "indexSizes":
            scaled[name] = {index: int(size) // scale for index, size in value.items()}
        else:
            scaled[name] = value
    return scaled
