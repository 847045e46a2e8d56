"""The catalog: collections according to the config servers, compared with those on the shards."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

Bound = Hashable
"""A key as bytes that compare as keys do, or anything else that can be compared."""


@dataclass(frozen=True)
class ShardedCollection:
    """A sharded collection according to the catalog.

    Attributes:
        uuid: its UUID, in any form that can be compared.
        chunks: lower bound, upper bound and shard of each, by lower bound.
        least: the lowest possible bound.
        most: the highest possible bound.
    """

    uuid: Hashable
    chunks: tuple[tuple[Any, Any, str], ...]
    least: Any
    most: Any


@dataclass(frozen=True)
class CatalogView:
    """The final state, after all activity has ended.

    Attributes:
        sharded: the sharded collections, by namespace.
        primaries: the primary shard of each database.
        local: for each shard the UUIDs of its collections, by namespace.
    """

    sharded: Mapping[str, ShardedCollection]
    primaries: Mapping[str, str]
    local: Mapping[str, Mapping[str, Hashable]]


def check_catalog(view: CatalogView) -> list[str]:
    """Inconsistencies in the view."""
    anomalies = [anomaly for name, entry in view.sharded.items() for anomaly in _check_chunks(name, entry)]
    for shard, collections in view.local.items():
        for namespace, uuid in collections.items():
            anomalies += _check_local(view, shard, namespace, uuid)
    for namespace, entry in view.sharded.items():
        for shard in sorted({shard for _, _, shard in entry.chunks}):
            if namespace not in view.local.get(shard, {}):
                anomalies.append(f"{shard} owns chunks of {namespace} and does not have the collection")
    return anomalies


def _check_chunks(namespace: str, entry: ShardedCollection) -> Sequence[str]:
    if not entry.chunks:
        return [f"{namespace} has no chunks"]
    anomalies = []
    if entry.chunks[0][0] != entry.least or entry.chunks[-1][1] != entry.most:
        anomalies.append(f"the chunks of {namespace} go from {entry.chunks[0][0]} to {entry.chunks[-1][1]}")
    for before, after in pairwise(entry.chunks):
        if before[1] != after[0]:
            what = "a gap" if before[1] < after[0] else "an overlap"
            anomalies.append(f"{namespace} has {what} between {before} and {after}")
    return anomalies


def _check_local(view: CatalogView, shard: str, namespace: str, uuid: Hashable) -> Sequence[str]:
    entry = view.sharded.get(namespace)
    if entry is not None:
        if uuid == entry.uuid:
            return []
        return [f"{shard} has {namespace} with the UUID {uuid}, the catalog says {entry.uuid}"]
    database = namespace.partition(".")[0]
    primary = view.primaries.get(database)
    if primary == shard:
        return []
    where = f"whose primary shard is {primary}" if primary else "which does not exist"
    return [f"{shard} has a stray collection {namespace} ({uuid}) of the database {database}, {where}"]
