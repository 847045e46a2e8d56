"""What one shard is sent of a batch in one round."""

from collections.abc import Iterable


class ShardBatch:
    """The statements of one round for one shard.

    Attributes:
        shard: the shard.
        is_broadcast: its statements go to other shards too, which do not check versions then.
        positions: the statements, by their position in the client's batch.
    """

    __slots__ = ("is_broadcast", "positions", "shard")

    def __init__(self, shard: str, *, is_broadcast: bool, positions: Iterable[int] = ()) -> None:
        self.shard = shard
        self.is_broadcast = is_broadcast
        self.positions = list(positions)
