"""A shard's part of one round of a batch."""

from collections.abc import Iterable


class ShardBatch:
    """The statements of one round for one shard.

    Attributes:
        shard: the shard.
        is_broadcast: its statements also go to other shards; versions are not checked.
        positions: the statements, by their position in the client's batch.
    """

    __slots__ = ("is_broadcast", "positions", "shard")

    def __init__(self, shard: str, *, is_broadcast: bool, positions: Iterable[int] = ()) -> None:
        self.shard = shard
        self.is_broadcast = is_broadcast
        self.positions = list(positions)
