from bson import MaxKey, MinKey

from shardwright.deploy.chunk_map import WIDTH, Chunk, ChunkMap, draw


def chunk_map(owners: str, bounds: list[object] | None = None) -> ChunkMap:
    """A map whose chunks belong to the shards numbered by the digits of ``owners``."""
    inner = bounds or list(range(1, len(owners)))
    points = [MinKey(), *inner, MaxKey()]
    chunks = tuple(
        Chunk({"k": points[index]}, {"k": points[index + 1]}, f"shard{owner}") for index, owner in enumerate(owners)
    )
    return ChunkMap("db.c", {"k": 1}, chunks)


def test_each_chunk_is_a_block_in_the_row_of_its_shard() -> None:
    lines = draw(chunk_map("0101"), ["shard0", "shard1"]).splitlines()
    block, gap = "█" * (WIDTH // 4), "·" * (WIDTH // 4)
    assert lines[:3] == [
        "db.c { k: 1 }: 4 chunks",
        f"  shard0 {block}{gap}{block}{gap}    2",
        f"  shard1 {gap}{block}{gap}{block}    2",
    ]
    assert [line.strip() for line in lines[3:]] == [
        "[MinKey , 1     ) shard0",
        "[     1 , 2     ) shard1",
        "[     2 , 3     ) shard0",
        "[     3 , MaxKey) shard1",
    ]


def test_shard_without_chunks_has_an_empty_row() -> None:
    lines = draw(chunk_map("0"), ["shard0", "shard1"]).splitlines()
    assert lines[0] == "db.c { k: 1 }: 1 chunk"
    assert lines[2] == f"  shard1 {'·' * WIDTH}    0"


def test_many_chunks_share_columns_and_no_owner_disappears() -> None:
    lines = draw(chunk_map("0" * 500 + "1" + "0" * 499), ["shard0", "shard1"]).splitlines()
    assert lines[2].count("█") == 1
    assert len(lines[1]) == len(lines[2])
    assert "… 990 more" in lines[8]


def test_long_bounds_are_truncated() -> None:
    assert "x" * 23 + "…" in draw(chunk_map("01", ["x" * 100]), ["shard0", "shard1"])
