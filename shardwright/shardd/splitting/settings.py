"""Settings of auto-splitting: the cluster's, from ``config.settings``, and the server parameters of this shard.

The parameters are set at start and by ``setParameter``; mongod does not have them.
"""

from dataclasses import dataclass
from typing import Final

from shardwright.shardd.cluster.catalog import Catalog
from shardwright.sharding.catalog.settings import (
    AUTO_SPLIT_ID,
    BALANCER_ID,
    CHUNK_SIZE_ID,
    AutoSplitSettings,
    BalancerSettings,
    ChunkSizeSettings,
)
from shardwright.wire.rawbson import decode_document


@dataclass(frozen=True, slots=True)
class SplitSettings:
    """The cluster's settings.

    Attributes:
        chunk_bytes_max: the default chunk size, for collections that do not set one.
        is_enabled: whether chunks may be split as they grow (``sh.enableAutoSplit``).
        may_move: whether the balancer is on, so that the hot end of a collection may be moved to another shard.
    """

    chunk_bytes_max: int = ChunkSizeSettings().value_bytes
    is_enabled: bool = True
    may_move: bool = True

    @classmethod
    async def read(cls, catalog: Catalog) -> "SplitSettings":
        """Read the present settings.

        Raises:
            CommandError: the config servers cannot be reached; BadValue or TypeMismatch, a setting is invalid.
        """
        query = {"_id": {"$in": [AUTO_SPLIT_ID, BALANCER_ID, CHUNK_SIZE_ID]}}
        found = {each["_id"]: each for each in map(decode_document, await catalog.find("settings", query))}
        return cls(
            ChunkSizeSettings.from_document(found.get(CHUNK_SIZE_ID)).value_bytes,
            AutoSplitSettings.from_document(found.get(AUTO_SPLIT_ID)).enabled,
            BalancerSettings.from_document(found.get(BALANCER_ID)).mode != "off",
        )


GROWTH_FRACTION: Final = 0.2
"""MongoDB's value: it looks for split points whenever a fifth of the chunk size has been written to a chunk."""


@dataclass
class SplitParameters:
    """The parameters of one shard daemon.

    Attributes:
        is_enabled: whether chunks are split as they grow (``autoSplitChunks``). If not, the balancer splits off only
            the ranges that it moves, as in MongoDB since 6.0.3.
        growth_fraction: the fraction of the chunk size to write before the next search for split points
            (``autoSplitGrowthFraction``).
    """

    is_enabled: bool = True
    growth_fraction: float = GROWTH_FRACTION
