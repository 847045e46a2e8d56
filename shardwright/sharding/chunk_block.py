"""A run of neighbouring chunks of a routing table, packed into a few byte strings and arrays.

A routing table of a million chunks is some four thousand blocks. A refresh builds new blocks for the few that changed
and shares all others with the previous table. A chunk is not an object: its keys alone would take more memory than all
of its data in a block.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise, repeat
from typing import Final, NamedTuple, TypeAlias

CHUNKS_PER_BLOCK = 256
"""Chunks in a full block: balances the copy for one changed chunk against the number of blocks in every refresh.

At most 256, because the owner of a chunk is stored in a byte.
"""

_LANDMARKS_MIN: Final = 32
"""Minimum number of keys that a block keeps as objects; smaller blocks keep all."""


Row: TypeAlias = tuple[bytes, bytes, str, int, int, tuple[tuple[int, str], ...]]
"""Values of a `BlockRow`; a table is built from millions of them."""


class BlockRow(NamedTuple):
    """One chunk; its upper bound is the lower bound of the next row."""

    min_key: bytes
    min: bytes
    shard: str
    version: int
    valid_after: int
    older: tuple[tuple[int, str], ...]


class Owned(NamedTuple):
    """One shard's share of some chunks: their number, and the highest of their packed versions."""

    chunks: int
    version: int


class ChunkBlock:
    """The chunks of some rows, at least one, ordered by their keys; immutable.

    Times and versions are packed.

    Attributes:
        owners: the shards that own chunks of the block.
        owner_numbers: the shard of each chunk, as a position in ``owners``.
        valid_after: the time since which each chunk has been on its shard.
        newest_valid_after: the time since which all chunks have been on their present shards. From then on their
            history need not be examined.
    """

    __slots__ = (
        "_count",
        "_counts",
        "_key_ends",
        "_keys",
        "_landmarks",
        "_min_ends",
        "_mins",
        "_mins_prefix",
        "_newest",
        "_older",
        "_spacing",
        "first_key",
        "newest_valid_after",
        "owner_numbers",
        "owners",
        "valid_after",
        "versions",
    )

    def __init__(self, rows: Sequence[Row]) -> None:
        keys, mins, shards, versions, valid_after, older = zip(*rows, strict=True)
        self._count = len(rows)
        # Bisection over the landmarks runs in C; between two landmarks the keys are cut out of the packed ones.
        self._spacing = max(len(rows) // _LANDMARKS_MIN, 1)
        self._landmarks: tuple[bytes, ...] = keys[:: self._spacing]
        self._keys = b"".join(keys)
        self._key_ends = array("I", accumulate(map(len, keys), initial=0))
        # The documents of bounds have the same field names, and mostly the same size.
        self._mins_prefix = _common_prefix(min(mins), max(mins))
        cut = len(self._mins_prefix)
        self._mins = b"".join([document[cut:] for document in mins] if cut else mins)
        self._min_ends = array("I", accumulate([len(document) - cut for document in mins], initial=0))
        self.owners: tuple[str, ...] = tuple(dict.fromkeys(shards))
        numbers = {shard: number for number, shard in enumerate(self.owners)}
        self.owner_numbers = bytes(map(numbers.__getitem__, shards))
        self.versions = array("Q", versions)
        self.valid_after = array("Q", valid_after)
        self.newest_valid_after: int = max(valid_after)
        # History before valid_after; few chunks have one, after a move within the snapshot window.
        self._older: dict[int, tuple[tuple[int, str], ...]] | None = {
            position: each for position, each in enumerate(older) if each
        } or None
        self._counts = array("H", map(self.owner_numbers.count, range(len(self.owners))))
        newest = [0] * len(self.owners)
        for number, version in zip(self.owner_numbers, versions, strict=True):
            if version > newest[number]:
                newest[number] = version
        self._newest = array("Q", newest)
        self.first_key: bytes = keys[0]

    def __len__(self) -> int:
        return self._count

    def position_of(self, key: bytes) -> int:
        """Find the chunk of a key that is not before the block; the last chunk if the key is after the block."""
        position = bisect_right(self._landmarks, key)
        spacing = self._spacing
        if spacing == 1:
            return position - 1
        keys, ends = self._keys, self._key_ends
        low = (position - 1) * spacing + 1
        high = position * spacing
        if high > self._count:
            high = self._count
        while low < high:
            middle = (low + high) >> 1
            if key < keys[ends[middle] : ends[middle + 1]]:
                high = middle
            else:
                low = middle + 1
        return low - 1

    def first_from(self, key: bytes) -> int:
        """Find the first chunk that does not begin before a key; the length of the block if all do."""
        if key <= self.first_key:
            return 0
        position = self.position_of(key)
        return position if self.min_key(position) == key else position + 1

    def min_key(self, position: int) -> bytes:
        """Return the key at which a chunk begins."""
        ends = self._key_ends
        return self._keys[ends[position] : ends[position + 1]]

    def min_document(self, position: int) -> bytes:
        """Return the lower bound of a chunk, as a document."""
        ends = self._min_ends
        return self._mins_prefix + self._mins[ends[position] : ends[position + 1]]

    def shard(self, position: int) -> str:
        """Return the shard that owns a chunk."""
        return self.owners[self.owner_numbers[position]]

    def older(self, position: int) -> tuple[tuple[int, str], ...]:
        """Return the history of a chunk before it came to its shard: packed time and shard, newest first."""
        return () if self._older is None else self._older.get(position, ())

    def rows(self) -> Iterator[BlockRow]:
        """Yield the chunks of this block, in order."""
        keys = [self._keys[start:end] for start, end in pairwise(self._key_ends)]
        prefix = self._mins_prefix
        mins = [prefix + self._mins[start:end] for start, end in pairwise(self._min_ends)]
        shards = [self.owners[number] for number in self.owner_numbers]
        older = map(self.older, range(len(keys))) if self._older else repeat(())
        return map(BlockRow._make, zip(keys, mins, shards, self.versions, self.valid_after, older, strict=False))

    def owned(self) -> Iterator[tuple[str, Owned]]:
        """Yield each owner with its share of the block."""
        return zip(self.owners, map(Owned, self._counts, self._newest), strict=True)

    def owned_by(self, shard: str) -> Owned:
        """Return a shard's share of the block; no chunks and version 0 if it is not an owner."""
        if shard not in self.owners:
            return Owned(0, 0)
        number = self.owners.index(shard)
        return Owned(self._counts[number], self._newest[number])

    def owners_between(self, first: int, end: int) -> set[str]:
        """Return the shards that own the chunks at the positions from ``first`` to before ``end``."""
        return {self.owners[number] for number in set(self.owner_numbers[first:end])}

    def runs_of_shard(self, shard: str) -> Iterator[tuple[int, bool]]:
        """Yield the runs of chunks that a shard owns or does not own: the first position, and whether it owns them."""
        if shard not in self.owners or len(self.owners) == 1:
            yield 0, shard in self.owners
            return
        number = self.owners.index(shard)
        is_owned: bool | None = None
        for position, owner in enumerate(self.owner_numbers):
            if (owner == number) is not is_owned:
                is_owned = owner == number
                yield position, is_owned

    def positions_of_shard(self, shard: str) -> Iterator[int]:
        """Yield the positions of the chunks that a shard owns, in order."""
        if shard in self.owners:
            number = self.owners.index(shard)
            position = self.owner_numbers.find(number)
            while position >= 0:
                yield position
                position = self.owner_numbers.find(number, position + 1)


def cut_into_blocks(rows: Sequence[BlockRow]) -> list[ChunkBlock]:
    """Divide rows into blocks of about equal size, none larger than `CHUNKS_PER_BLOCK`."""
    count = -(-len(rows) // CHUNKS_PER_BLOCK)
    return [ChunkBlock(rows[len(rows) * n // count : len(rows) * (n + 1) // count]) for n in range(count)]


def _common_prefix(least: bytes, greatest: bytes) -> bytes:
    """Return the common prefix of all byte strings between two."""
    if least == greatest:
        return least
    length = bisect_left(range(len(least)), True, key=lambda at: least[: at + 1] != greatest[: at + 1])
    return least[:length]
