"""Properties of any sequence of catalog changes, and of the routing tables that follow it."""

from collections.abc import Iterator
from itertools import pairwise

import pytest
from bson.timestamp import Timestamp
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwright.sharding import chunk_block, routing_table_build
from shardwright.sharding.chunk_changes import ChunkChanges, Migration, bump_minor, merge, move, split
from shardwright.sharding.chunks import Chunk, ChunkRange
from shardwright.sharding.routing_table import RoutingTable
from shardwright.sharding.versions import ChunkVersion
from tests.sharding.chunk_worlds import MAX, MIN, PATTERN, applied, bound, key, new_id, table_of, version, whole


@pytest.fixture(autouse=True, scope="module")
def tiny_blocks() -> Iterator[None]:
    """Blocks of two chunks, so that a few chunks make many blocks."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (chunk_block, routing_table_build, routing_table_build):
            patch.setattr(module, "CHUNKS_PER_BLOCK", 2)
        yield


SHARDS = ("s1", "s2", "s3")
VALUES = st.integers(0, 60)


class Collection:
    """A collection that random changes are applied to, one after the other."""

    def __init__(self) -> None:
        self.chunks = [whole()]
        self.version = version(1, 0)
        self.time = 2000

    def change(self, draw: st.DataObject) -> ChunkChanges:
        """Apply one change that is possible now."""
        kind = draw.draw(st.sampled_from(["split", "split", "move", "move part", "merge", "bump"]))
        changes = getattr(self, kind.replace(" ", "_"))(draw)
        assert isinstance(changes, ChunkChanges)
        self.chunks = applied(self.chunks, changes)
        self.version = changes.collection_version(self.version)
        return changes

    def split(self, draw: st.DataObject) -> ChunkChanges:
        chunk = draw.draw(st.sampled_from(self.chunks))
        return self._split(chunk, draw.draw(st.sets(VALUES, min_size=1, max_size=5)))

    def _split(self, chunk: Chunk, values: set[int]) -> ChunkChanges:
        inside = chunk.range(PATTERN)
        points = [
            bound(value) for value in sorted(values) if inside.contains_key(key(value)) and key(value) != inside.min_key
        ]
        if not points:
            return ChunkChanges()
        return split(chunk, points, pattern=PATTERN, collection_version=self.version, new_id=new_id)

    def move(self, draw: st.DataObject) -> ChunkChanges:
        chunk = draw.draw(st.sampled_from(self.chunks))
        return self._move(chunk, chunk.range(PATTERN), draw)

    def move_part(self, draw: st.DataObject) -> ChunkChanges:
        chunk = draw.draw(st.sampled_from(self.chunks))
        low, high = sorted(draw.draw(st.lists(VALUES, min_size=2, max_size=2, unique=True)))
        part = ChunkRange.of(PATTERN, bound(low), bound(high))
        return self._move(chunk, part if chunk.range(PATTERN).contains(part) else chunk.range(PATTERN), draw)

    def _move(self, chunk: Chunk, moved: ChunkRange, draw: st.DataObject) -> ChunkChanges:
        self.time += draw.draw(st.integers(1, 400))
        to = draw.draw(st.sampled_from([shard for shard in SHARDS if shard != chunk.shard]))
        control = next((each for each in self.chunks if each.shard == chunk.shard and each is not chunk), None)
        migration = Migration(
            moved, chunk.version, chunk.shard, to, Timestamp(self.time, 1), Timestamp(self.time - 300, 0)
        )
        return move(migration, chunk, control=control, pattern=PATTERN, collection_version=self.version, new_id=new_id)

    def merge(self, draw: st.DataObject) -> ChunkChanges:
        first = draw.draw(st.integers(0, len(self.chunks) - 1))
        last = first
        while last + 1 < len(self.chunks) and self.chunks[last + 1].shard == self.chunks[first].shard:
            last += 1
        chunks = self.chunks[first : last + 1]
        self.time += 1
        return merge(
            chunks,
            ChunkRange.of(PATTERN, chunks[0].min, chunks[-1].max),
            shard=chunks[0].shard,
            pattern=PATTERN,
            collection_version=self.version,
        )

    def bump(self, draw: st.DataObject) -> ChunkChanges:
        return bump_minor(max(self.chunks, key=lambda each: each.version.packed))


def facts(table: RoutingTable) -> object:
    """Everything a table contains, in a comparable form."""
    versions = {shard: table.shard_version(shard) for shard in SHARDS}
    counts = {shard: table.chunk_count_of(shard) for shard in SHARDS}
    return list(table.chunks()), table.shards, table.collection_version, versions, counts


def changed_since(chunks: list[Chunk], known: ChunkVersion) -> list[Chunk]:
    """The catalog's reply to a refresh from ``known``."""
    newer = [each for each in chunks if known.is_older_or_equal(each.version)]
    return sorted(newer, key=lambda each: each.version.packed)


@given(st.data())
@settings(deadline=None)
def test_ranges_tile_and_versions_rise(data: st.DataObject) -> None:
    collection = Collection()
    for _ in range(data.draw(st.integers(1, 12))):
        before = collection.version
        changes = collection.change(data)
        chunks = collection.chunks
        assert (chunks[0].min, chunks[-1].max) == (MIN, MAX)
        assert all(left.max == right.min for left, right in pairwise(chunks))
        assert len({each.version.packed for each in chunks}) == len(chunks)
        assert all(before.is_older_than(each.version) for each in changes.written)
        assert collection.version == max((each.version for each in chunks), key=lambda each: each.packed)
        assert all(not each.history or each.history[0].shard == each.shard for each in chunks)


@given(st.data())
@settings(deadline=None)
def test_an_incremental_update_is_a_full_rebuild(data: st.DataObject) -> None:
    collection = Collection()
    table = table_of(collection.chunks)
    for _ in range(data.draw(st.integers(1, 6))):
        for _ in range(data.draw(st.integers(1, 4))):
            collection.change(data)
        changed = changed_since(collection.chunks, table.collection_version)
        table = table.with_changed_chunks(each.placement for each in changed)
        assert facts(table) == facts(table_of(collection.chunks))


@given(st.data())
@settings(deadline=None)
def test_history_tells_where_keys_were(data: st.DataObject) -> None:
    collection = Collection()
    past: list[tuple[int, RoutingTable]] = []
    for _ in range(data.draw(st.integers(1, 8))):
        collection.change(data)
        past.append((collection.time, table_of(collection.chunks)))
    now = table_of(collection.chunks)
    value = key(data.draw(VALUES))
    for time, then in past:
        if time < collection.time - 300:
            continue
        # After a merge the history starts again, and nothing is known about the time before.
        oldest = min(
            entry.valid_after.time
            for each in collection.chunks
            for entry in each.history
            if each.range(PATTERN).contains_key(value)
        )
        if oldest <= time:
            assert now.shard_for_key_at(value, Timestamp(time, 1)) == then.shard_for_key(value)


@given(st.sets(VALUES, min_size=1, max_size=6))
def test_split_then_merge_is_identity_on_ranges(values: set[int]) -> None:
    before = whole()
    points = [bound(value) for value in sorted(values)]
    parts = split(before, points, pattern=PATTERN, collection_version=version(1, 0), new_id=new_id)
    after = merge(
        parts.written,
        before.range(PATTERN),
        shard="s1",
        pattern=PATTERN,
        collection_version=parts.collection_version(version(1, 0)),
    )
    (merged,) = applied(parts.written, after)
    assert (merged.id, merged.min, merged.max, merged.shard) == (before.id, before.min, before.max, before.shard)


@given(st.data())
@settings(deadline=None)
def test_shards_for_range_are_those_of_the_keys_in_it(data: st.DataObject) -> None:
    collection = Collection()
    for _ in range(data.draw(st.integers(1, 10))):
        collection.change(data)
    table = table_of(collection.chunks)
    low, high = sorted(data.draw(st.lists(VALUES, min_size=2, max_size=2, unique=True)))
    half_open = {table.shard_for_key(key(value / 2)) for value in range(2 * low, 2 * high)}
    assert table.shards_for_range(key(low), key(high)) == half_open
    closed = half_open | {table.shard_for_key(key(high))}
    assert table.shards_for_range(key(low), key(high), high_inclusive=True) == closed
