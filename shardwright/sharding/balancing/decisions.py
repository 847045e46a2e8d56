"""Decisions of the policy and of defragmentation, with their rules and numbers, and skipped ones with their reasons."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar

from shardwright.sharding.balancing.chunk_queries import Candidate
from shardwright.sharding.balancing.cluster_state import ForceJumbo
from shardwright.sharding.chunks import ChunkRange
from shardwright.sharding.namespace import Namespace
from shardwright.wire.rawbson import raw_document


class Rule(Enum):
    """Reason to split, move, merge or measure a chunk; the values are MongoDB's where it reports them.

    The last three are the phases of defragmentation.
    """

    ZONE_BOUNDARY = "zoneBoundary"
    DRAINING = "draining"
    ZONE_VIOLATION = "zoneViolation"
    IMBALANCE = "chunksImbalance"
    HOT_END = "hotEnd"
    MERGE_AND_MEASURE = "mergeAndMeasureChunks"
    MOVE_AND_MERGE = "moveAndMergeChunks"
    MERGE = "mergeChunks"


@dataclass(frozen=True, slots=True)
class Split:
    """Split a chunk that contains bounds of zones."""

    namespace: Namespace
    chunk: Candidate
    points: tuple[bytes, ...]

    def to_document(self) -> dict[str, Any]:
        """Build the document for commands and the log."""
        return {
            "action": "split",
            "ns": str(self.namespace),
            "shard": self.chunk.shard,
            **self.chunk.range.to_document(),
            "splitKeys": [raw_document(point) for point in self.points],
            "rule": Rule.ZONE_BOUNDARY.value,
        }


@dataclass(frozen=True, slots=True)
class Move:
    """Move a chunk, or, to even out data sizes, the part from its beginning with the size of one chunk.

    Attributes:
        force_jumbo: the treatment of a chunk that is too large.
        zone: of its keys; empty if none.
        numbers: the numbers that the rule compared.
    """

    namespace: Namespace
    chunk: Candidate
    recipient: str
    rule: Rule
    is_whole: bool
    force_jumbo: ForceJumbo = ForceJumbo.NO
    zone: str = ""
    numbers: Mapping[str, int] = field(default_factory=dict)

    @property
    def donor(self) -> str:
        """Present shard of the chunk."""
        return self.chunk.shard

    def to_document(self) -> dict[str, Any]:
        """Build the document for commands and the log."""
        bounds = self.chunk.range.to_document()
        return {
            "action": "moveChunk" if self.is_whole else "moveRange",
            "ns": str(self.namespace),
            "from": self.donor,
            "to": self.recipient,
            **(bounds if self.is_whole else {"min": bounds["min"]}),
            "rule": self.rule.value,
            **({"zone": self.zone} if self.zone else {}),
            **self.numbers,
        }


@dataclass(frozen=True, slots=True)
class _InPlace:
    """A step of defragmentation on one shard.

    Attributes:
        zone: of its keys; empty if none.
        numbers: the numbers that the rule compared.
    """

    namespace: Namespace
    chunk: Candidate
    rule: Rule
    zone: str = ""
    numbers: Mapping[str, int] = field(default_factory=dict)

    action: ClassVar[str]

    def to_document(self) -> dict[str, Any]:
        """Build the document for commands and the log."""
        return {
            "action": self.action,
            "ns": str(self.namespace),
            "shard": self.chunk.shard,
            **self.chunk.range.to_document(),
            "rule": self.rule.value,
            **({"zone": self.zone} if self.zone else {}),
            **self.numbers,
        }


class Merge(_InPlace):
    """Merge chunks of one shard that follow each other; ``chunk`` is the result."""

    __slots__ = ()
    action: ClassVar[str] = "mergeChunks"


class Measure(_InPlace):
    """Measure a chunk on its shard to decide whether to move it."""

    __slots__ = ()
    action: ClassVar[str] = "measureChunk"


@dataclass(frozen=True, slots=True)
class Skipped:
    """A step that a rule would have taken, had there not been a reason against it."""

    namespace: Namespace
    reason: str
    rule: Rule | None = None
    shard: str = ""
    zone: str = ""
    range: ChunkRange | None = None
    """The one chunk that it concerns."""

    def to_document(self) -> dict[str, Any]:
        """Build the document for commands and the log."""
        return {
            "ns": str(self.namespace),
            **({"rule": self.rule.value} if self.rule is not None else {}),
            **({"shard": self.shard} if self.shard else {}),
            **({"zone": self.zone} if self.zone else {}),
            **(self.range.to_document() if self.range is not None else {}),
            "reason": self.reason,
        }


@dataclass(slots=True)
class Decisions:
    """The result of a rule, a collection or a whole round, in the order of the decisions."""

    splits: list[Split] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
