"""The simplest thing that says where chunks are."""

from bisect import bisect_right

from sharding.shard_key import ShardKeyPattern


class SortedChunks:
    """Chunks between split points; the first on shard ``s0``, the next on ``s1`` and so on."""

    def __init__(self, pattern: ShardKeyPattern, splits: list[bytes]) -> None:
        self.key_pattern = pattern
        self.bounds = sorted({pattern.global_min_bytes(), *splits})
        self.shards = frozenset(f"s{position}" for position in range(len(self.bounds)))

    def shard_for_key(self, key: bytes) -> str:
        return f"s{bisect_right(self.bounds, key) - 1}"

    def shards_for_range(self, low: bytes, high: bytes) -> frozenset[str]:
        ends = [*self.bounds[1:], b"\xff"]
        return frozenset(
            f"s{position}"
            for position, (start, end) in enumerate(zip(self.bounds, ends, strict=True))
            if start < high and low < end
        )
