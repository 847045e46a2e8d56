"""The policy's input: the shards, and the collections with their sizes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from shardwright.sharding.balancing.zones import NO_ZONE, ZoneMap
from shardwright.sharding.namespace import Namespace


class ForceJumbo(Enum):
    """A shard's treatment of a chunk that is larger than the limit, with the values of ``forceJumbo``."""

    NO = 0
    BALANCER = 2


class Policy(Enum):
    """The quantity that the balancer evens out."""

    DATA_SIZE = "dataSize"
    CHUNK_COUNT = "chunkCount"


@dataclass(frozen=True, slots=True)
class ShardState:
    """A shard.

    Attributes:
        is_available: its statistics could be read in this round; without them, nothing is moved from or to it.
    """

    id: str
    zones: frozenset[str] = frozenset()
    is_draining: bool = False
    is_available: bool = True

    def may_own(self, zone: str) -> bool:
        """Whether chunks of a zone, or of `NO_ZONE`, may stay on the shard."""
        return zone == NO_ZONE or zone in self.zones

    def may_receive(self, zone: str) -> bool:
        """Whether chunks of a zone, or of `NO_ZONE`, may be moved to the shard."""
        return self.is_available and not self.is_draining and self.may_own(zone)


@dataclass(frozen=True, slots=True)
class CollectionState:
    """A sharded collection.

    Attributes:
        sizes: bytes of its documents on each shard, without orphans; a shard that is missing has none.
        chunk_bytes_max: the size above which a chunk is too large; also the amount of one move of data.
        why_skipped: why the balancer must not touch it; empty if it may.
    """

    namespace: Namespace
    zones: ZoneMap
    sizes: Mapping[str, int] = field(default_factory=dict)
    chunk_bytes_max: int = 128 << 20
    why_skipped: str = ""

    def size_on(self, shard: str) -> int:
        """Return the bytes of its documents on a shard."""
        return self.sizes.get(shard, 0)


@dataclass(frozen=True, slots=True)
class ClusterState:
    """The complete input of a round.

    Attributes:
        shards: all shards, in the order of their names.
        force_jumbo: ``attemptToBalanceJumboChunks``: whether whole chunks are moved even if they are too large.
    """

    shards: tuple[ShardState, ...]
    policy: Policy = Policy.DATA_SIZE
    force_jumbo: ForceJumbo = ForceJumbo.NO
