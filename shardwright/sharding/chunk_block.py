"""A run of neighbouring chunks of a routing table, stored as parallel arrays.

A routing table of a million chunks is some four thousand blocks; a refresh makes new blocks for the few that changed
and shares all others with the table before it.
"""

from array import array
from collections.abc import Iterable, Iterator
from typing import NamedTuple

CHUNKS_PER_BLOCK = 256
"""Balances the copy that one changed chunk costs against the number of blocks that every refresh passes over."""


class BlockRow(NamedTuple):
    """One chunk as a block stores it; its upper bound is the lower bound of the next row."""

    min_key: bytes
    min: bytes
    shard: str
    version: int
    valid_after: int
    older: tuple[tuple[int, str], ...]


class Owned(NamedTuple):
    """What one shard owns of some chunks: how many, and the highest of their packed versions."""

    chunks: int
    version: int


class ChunkBlock:
    """Immutable once built. All sequences have the same length and are ordered by ``min_keys``."""

    __slots__ = ("min_keys", "mins", "newest_valid_after", "older", "owned", "shards", "valid_after", "versions")

    def __init__(self, rows: Iterable[BlockRow]) -> None:
        self.min_keys: list[bytes] = []
        self.mins: list[bytes] = []
        self.shards: list[str] = []
        self.versions = array("Q")
        self.valid_after = array("Q")
        # History before valid_after, which few chunks have: a move made less than the snapshot window ago.
        self.older: dict[bytes, tuple[tuple[int, str], ...]] = {}
        counts: dict[str, int] = {}
        versions: dict[str, int] = {}
        for min_key, min_document, shard, version, valid_after, older in rows:
            self.min_keys.append(min_key)
            self.mins.append(min_document)
            self.shards.append(shard)
            self.versions.append(version)
            self.valid_after.append(valid_after)
            if older:
                self.older[min_key] = older
            counts[shard] = counts.get(shard, 0) + 1
            if version > versions.get(shard, -1):
                versions[shard] = version
        self.owned = {shard: Owned(count, versions[shard]) for shard, count in counts.items()}
        # From this packed time on all chunks are where they are now, so none of them has to be looked at.
        self.newest_valid_after = max(self.valid_after, default=0)

    def __len__(self) -> int:
        return len(self.min_keys)

    def rows(self) -> Iterator[BlockRow]:
        """The chunks of this block, in order."""
        older = self.older.get
        for row in zip(self.min_keys, self.mins, self.shards, self.versions, self.valid_after, strict=True):
            yield BlockRow(*row, older(row[0], ()))


def cut_into_blocks(rows: list[BlockRow]) -> list[ChunkBlock]:
    """Blocks of about equal size, none larger than `CHUNKS_PER_BLOCK`."""
    count = -(-len(rows) // CHUNKS_PER_BLOCK)
    return [ChunkBlock(rows[len(rows) * n // count : len(rows) * (n + 1) // count]) for n in range(count)]
