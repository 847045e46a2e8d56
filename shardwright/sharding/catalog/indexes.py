"""Indexes and options of the catalog's collections, as seen on MongoDB 6.0.5; all have an ``_id`` index too."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from shardwright.sharding.catalog.changelog_entry import ACTIONLOG_BYTES_MAX, CHANGELOG_BYTES_MAX
from shardwright.sharding.key_statistics import HISTORY, HISTORY_BYTES_MAX, MINUTES, MINUTES_BYTES_MAX


@dataclass(frozen=True, slots=True)
class IndexDefinition:
    """One index; named by its key unless MongoDB named it otherwise."""

    key: Mapping[str, int]
    unique: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)

    def to_specification(self) -> dict[str, Any]:
        """Build the specification for ``createIndexes``."""
        name = "_".join(f"{path}_{direction}" for path, direction in self.key.items())
        specification: dict[str, Any] = {"key": dict(self.key), "name": name}
        if self.unique:
            specification["unique"] = True
        return specification | dict(self.options)


INDEXES: Final[Mapping[str, tuple[IndexDefinition, ...]]] = {
    "shards": (IndexDefinition({"host": 1}, unique=True),),
    "chunks": (
        IndexDefinition({"uuid": 1, "min": 1}, unique=True),
        IndexDefinition({"uuid": 1, "shard": 1, "min": 1}, unique=True),
        IndexDefinition({"uuid": 1, "lastmod": 1}, unique=True),
    ),
    "tags": (IndexDefinition({"ns": 1, "min": 1}, unique=True), IndexDefinition({"ns": 1, "tag": 1})),
    "migrations": (IndexDefinition({"ns": 1, "min": 1}, unique=True),),
    "locks": (IndexDefinition({"ts": 1}), IndexDefinition({"state": 1, "process": 1})),
    "lockpings": (IndexDefinition({"ping": 1}),),
    "reshardingOperations": (
        IndexDefinition({"active": 1}, unique=True, options={"name": "ReshardingCoordinatorActiveIndex"}),
    ),
    MINUTES: (IndexDefinition({"at": 1}),),
    HISTORY: (IndexDefinition({"at": 1}),),
    "system.sessions": (IndexDefinition({"lastUse": 1}, options={"name": "lsidTTLIndex", "expireAfterSeconds": 1800}),),
}
"""Indexes of the config server's collections, by name within the database ``config``.

Key statistics are an addition of ours.
"""

CAPPED_BYTES: Final[Mapping[str, int]] = {
    "changelog": CHANGELOG_BYTES_MAX,
    "actionlog": ACTIONLOG_BYTES_MAX,
    MINUTES: MINUTES_BYTES_MAX,
    HISTORY: HISTORY_BYTES_MAX,
}
"""Capped collections of the config server, with their sizes."""

CACHE_CHUNKS_INDEXES: Final = (IndexDefinition({"lastmod": 1}),)
"""Indexes of every ``config.cache.chunks.<ns>`` on a shard."""

RANGE_DELETIONS_INDEXES: Final = (IndexDefinition({"collectionUuid": 1, "range.min": 1, "range.max": 1}),)
"""Indexes of ``config.rangeDeletions`` on a shard."""
