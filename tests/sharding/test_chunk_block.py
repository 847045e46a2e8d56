"""A packed block is the rows that it was made of."""

from bisect import bisect_left, bisect_right
from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.sharding import chunk_block
from shardwright.sharding.chunk_block import BlockRow, ChunkBlock, Owned, cut_into_blocks

SHARDS = ("s1", "s2", "s3")
NUMBERS = st.integers(0, 2**64 - 1)
KEYS = st.one_of(st.binary(max_size=4), st.sampled_from([b"common" + bytes([n]) for n in range(60)]))


@st.composite
def rows(draw: st.DrawFn) -> list[BlockRow]:
    """The rows of a block, in order."""
    keys = sorted(draw(st.sets(KEYS, min_size=1, max_size=40)))
    histories = st.lists(st.tuples(NUMBERS, st.sampled_from(SHARDS)), max_size=2).map(tuple)
    return [
        BlockRow(
            key,
            draw(st.sampled_from([b"document " + key, key + b" document", b"same"])),
            draw(st.sampled_from(SHARDS)),
            draw(NUMBERS),
            draw(NUMBERS),
            draw(histories),
        )
        for key in keys
    ]


@pytest.mark.parametrize("landmarks_min", [1, 2, 5, 32])
@given(rows=rows(), key=KEYS)
def test_a_block_is_its_rows(landmarks_min: int, rows: list[BlockRow], key: bytes) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunk_block, "_LANDMARKS_MIN", landmarks_min)
        block = ChunkBlock(rows)
    keys = [row.min_key for row in rows]
    assert list(block.rows()) == rows
    assert len(block) == len(rows)
    assert block.first_key == keys[0]
    assert block.newest_valid_after == max(row.valid_after for row in rows)
    assert block.first_from(key) == bisect_left(keys, key)
    if key >= keys[0]:
        assert block.position_of(key) == bisect_right(keys, key) - 1
    for position, each in enumerate(keys):
        assert block.position_of(each) == block.first_from(each) == position


@given(rows=rows(), data=st.data())
def test_owners_are_those_of_the_rows(rows: list[BlockRow], data: st.DataObject) -> None:
    block = ChunkBlock(rows)
    assert set(block.owners) == {row.shard for row in rows}
    owned = dict(block.owned())
    for shard in (*SHARDS, "s4"):
        versions = [row.version for row in rows if row.shard == shard]
        expected = Owned(len(versions), max(versions, default=0))
        assert block.owned_by(shard) == expected
        assert owned.get(shard, Owned(0, 0)) == expected
        assert list(block.positions_of_shard(shard)) == [n for n, row in enumerate(rows) if row.shard == shard]
        runs = groupby(range(len(rows)), key=lambda n: rows[n].shard == shard)
        assert list(block.runs_of_shard(shard)) == [(next(positions), is_owned) for is_owned, positions in runs]
    first, end = sorted(data.draw(st.lists(st.integers(0, len(rows)), min_size=2, max_size=2)))
    assert block.owners_between(first, end) == {row.shard for row in rows[first:end]}


def test_blocks_of_as_many_shards_as_chunks() -> None:
    rows = [BlockRow(b"%03d" % n, b"%03d" % n, f"s{n}", n, 0, ()) for n in range(600)]
    blocks = cut_into_blocks(rows)
    assert [row for block in blocks for row in block.rows()] == rows
    assert max(len(block) for block in blocks) <= chunk_block.CHUNKS_PER_BLOCK
