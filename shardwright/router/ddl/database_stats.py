"""``dbStats`` of a database from those of all shards."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

_COUNTS: Final = frozenset({"collections", "views", "objects", "indexes"})
_FIELDS: Final = (
    "collections",
    "views",
    "objects",
    "avgObjSize",
    "dataSize",
    "storageSize",
    "totalSize",
    "indexes",
    "indexSize",
    "scaleFactor",
    "fsUsedSize",
    "fsTotalSize",
)
_FREE_STORAGE_FIELDS: Final = ("freeStorageSize", "indexFreeStorageSize", "totalFreeStorageSize")


def merge_database_stats(db: str, shards: Sequence[Mapping[str, Any]], *, scale: int) -> dict[str, Any]:
    """The statistics of a whole database: counts are summed, and so are sizes, which are doubles.

    Args:
        db: the database.
        shards: the statistics of each shard, scaled already.
        scale: what their sizes were divided by; the average size of a document never is.
    """
    merged: dict[str, Any] = {"db": db}
    has_free_storage = any(_FREE_STORAGE_FIELDS[0] in stats for stats in shards)
    for name in (*_FIELDS, *(_FREE_STORAGE_FIELDS if has_free_storage else ())):
        if name == "scaleFactor":
            merged[name] = scale
        elif name == "avgObjSize":
            merged[name] = _average_size(shards)
        elif name in _COUNTS:
            merged[name] = sum(int(stats.get(name, 0)) for stats in shards)
        else:
            merged[name] = float(sum(stats.get(name, 0) for stats in shards))
    return merged


def _average_size(shards: Sequence[Mapping[str, Any]]) -> float:
    objects = sum(int(stats["objects"]) for stats in shards)
    size = sum(float(stats["avgObjSize"]) * int(stats["objects"]) for stats in shards)
    return size / objects if objects else 0.0
