"""Indexes that differ among the shards that own chunks of a collection. No I/O."""

from collections.abc import Mapping, Sequence
from typing import Any

from shardwright.sharding.consistency import Inconsistency


def index_differences(namespace: str, of_shards: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Return an inconsistency for each index that is missing or has other properties on some owner.

    Args:
        of_shards: the index specifications, by owner.
    """
    names = sorted({index["name"] for indexes in of_shards.values() for index in indexes})
    found = []
    for name in names:
        versions = {
            shard: next((index for index in indexes if index["name"] == name), None)
            for shard, indexes in of_shards.items()
        }
        present = [index for index in versions.values() if index is not None]
        missing = sorted(shard for shard, index in versions.items() if index is None)
        fields = {field for index in present for field in index}
        unequal = sorted(field for field in fields if any(each.get(field) != present[0].get(field) for each in present))
        if missing or unequal:
            info = {"indexName": name, "missingFromShards": missing, "inconsistentProperties": unequal}
            found.append(Inconsistency.InconsistentIndex.document(namespace, info=info))
    return found
