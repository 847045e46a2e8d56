"""Chunk queries of the policy, which avoid loading all chunks.

The policy consists of generators: they yield a `Question`, are sent its `Answer`, and return their result. The caller
looks chunks up in an index of ``config.chunks``, or, in a simulation, in a list.
"""

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

from shardwright.sharding.balancing.zones import ZoneMap
from shardwright.sharding.chunks import ChunkRange
from shardwright.sharding.namespace import Namespace


@dataclass(frozen=True, slots=True)
class Candidate:
    """A chunk that may be split or moved."""

    range: ChunkRange
    shard: str


@dataclass(frozen=True, slots=True)
class FirstChunk:
    """Query for the first chunk of a shard that begins in one of the given ranges.

    Attributes:
        within: the ranges, in order; None for all keys.
        is_movable: True to consider only chunks that are neither jumbo nor held back after a failed move; False for
            only the others.
    """

    namespace: Namespace
    shard: str
    within: tuple[ChunkRange, ...] | None
    is_movable: bool = True


@dataclass(frozen=True, slots=True)
class ChunkCounts:
    """Query for the number of each shard's chunks that begin in the given ranges; None for all keys."""

    namespace: Namespace
    within: tuple[ChunkRange, ...] | None


@dataclass(frozen=True, slots=True)
class ChunksAcross:
    """Query for the chunks that contain a bound of a zone in their interior."""

    namespace: Namespace
    zones: ZoneMap


Question: TypeAlias = FirstChunk | ChunkCounts | ChunksAcross


@dataclass(frozen=True, slots=True)
class Answer:
    """The chunks, or the counts by shard (a shard that is missing has none)."""

    chunks: tuple[Candidate, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)


Result = TypeVar("Result")
Asking: TypeAlias = Generator[Question, Answer, Result]


def ask_first_chunk(question: FirstChunk) -> Asking[Candidate | None]:
    """Query the first chunk; return None if there is none."""
    if question.within == ():
        return None
    answer = yield question
    return answer.chunks[0] if answer.chunks else None


def ask_counts(question: ChunkCounts) -> Asking[Mapping[str, int]]:
    """Query the number of chunks by shard."""
    answer = yield question
    return answer.counts
