"""Merging the shards' replies to ``listDatabases`` and ``dbStats``."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import bson

from shardwright.sharding.versions import CONFIG_SHARD

_EMPTY: Final = 1
"""The ``sizeOnDisk`` of an empty database in a storage engine without files."""

_MEGABYTE: Final = 1024 * 1024


def merge_database_lists(
    lists: Mapping[str, Sequence[Mapping[str, Any]]],
    *,
    names_only: bool = False,
    is_visible: Callable[[str], bool] = lambda _: True,
) -> dict[str, Any]:
    """Merge lists of databases, in alphabetical order, with total sizes and sizes per shard.

    ``local`` is each server's own and not shown. ``admin`` is on the config servers. ``config`` is on the config
    servers, and on the shards as caches of it.

    Args:
        lists: ``databases`` of each shard's reply by shard id, already filtered by the client's filter.
    """
    sizes: dict[str, dict[str, int]] = {}
    for shard, databases in lists.items():
        for database in databases:
            name = database["name"]
            if _is_shown(name, on_config_servers=shard == CONFIG_SHARD) and is_visible(name):
                sizes.setdefault(name, {})[shard] = int(database.get("sizeOnDisk", 0))
    if names_only:
        return {"databases": [{"name": name} for name in sorted(sizes)]}
    totals = {name: _total(by_shard) for name, by_shard in sizes.items()}
    total = sum(totals.values())
    return {
        "databases": [
            {
                "name": name,
                "sizeOnDisk": bson.Int64(totals[name]),
                "empty": totals[name] == _EMPTY,
                "shards": sizes[name],
            }
            for name in sorted(sizes)
        ],
        "totalSize": bson.Int64(total),
        "totalSizeMb": bson.Int64(total // _MEGABYTE),
    }


def _is_shown(name: str, *, on_config_servers: bool) -> bool:
    if on_config_servers:
        return name in ("admin", "config")
    return name not in ("admin", "local")


def _total(by_shard: Mapping[str, int]) -> int:
    """Add up sizes. The marker of an empty database counts only if the database is empty everywhere."""
    return sum(size for size in by_shard.values() if size != _EMPTY) or (_EMPTY if _EMPTY in by_shard.values() else 0)


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
    """Merge the statistics of a database: counts are summed, and so are sizes, which are doubles.

    Args:
        shards: the scaled statistics of each shard.
        scale: the divisor of their sizes, which does not apply to the average document size.
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
