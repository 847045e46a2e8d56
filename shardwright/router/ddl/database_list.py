"""``listDatabases`` of a cluster from those of all shards and the config servers."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import bson

from shardwright.sharding.versions import CONFIG_SHARD

_EMPTY: Final = 1
"""The ``sizeOnDisk`` by which a storage engine without files says that a database is empty."""

_MEGABYTE: Final = 1024 * 1024


def merge_database_lists(
    lists: Mapping[str, Sequence[Mapping[str, Any]]],
    *,
    names_only: bool = False,
    is_visible: Callable[[str], bool] = lambda _: True,
) -> dict[str, Any]:
    """The databases of a cluster in alphabetical order, with their sizes in all and on each shard.

    ``local`` is each server's own and not shown. ``admin`` is that of the config servers, ``config`` theirs and the
    caches of it that shards have; nothing else lives on them.

    Args:
        lists: ``databases`` of each shard's reply, filtered there if the client asks for that, by shard id.
        names_only: sizes are not asked for.
        is_visible: whether the client may see a database.
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
    """The sum of the sizes, in which an empty database counts for nothing beside one that is not."""
    return sum(size for size in by_shard.values() if size != _EMPTY) or (_EMPTY if _EMPTY in by_shard.values() else 0)
