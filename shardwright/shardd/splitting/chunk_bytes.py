"""Bytes written to each chunk of one collection since split points were last looked for in it."""

from typing import Final, TypeAlias

from shardwright.sharding.routing_table import RoutedChunk

ChunkBounds: TypeAlias = tuple[bytes, bytes]
"""The key bytes of a chunk's bounds: a chunk with other bounds is another chunk, which has its own count."""

CHUNKS_MAX: Final = 100_000
"""For more chunks than these, the counts that began first are forgotten."""


def bounds_of(chunk: RoutedChunk) -> ChunkBounds:
    """What identifies a chunk."""
    return chunk.min_key, chunk.max_key


class ChunkBytes:
    """The counts of one collection."""

    def __init__(self) -> None:
        self._counts: dict[ChunkBounds, int] = {}

    def add(self, chunk: ChunkBounds, number: int) -> int:
        """Add bytes to a chunk; returns the new count."""
        count = self._counts[chunk] = self._counts.get(chunk, 0) + number
        if len(self._counts) > CHUNKS_MAX:
            del self._counts[next(iter(self._counts))]
        return count

    def take(self, chunk: ChunkBounds) -> int:
        """Begin to count a chunk from 0; returns the former count."""
        return self._counts.pop(chunk, 0)

    def reaching(self, threshold: int) -> list[ChunkBounds]:
        """The chunks with a count of at least ``threshold``."""
        return [chunk for chunk, count in self._counts.items() if count >= threshold]
