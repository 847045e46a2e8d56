"""Choosing shards: which still take part in a round, and which of them has the least data or the most."""

from collections.abc import Iterator, Mapping

from shardwright.sharding.balancing.cluster_state import ClusterState, ShardState


class ShardChoice:
    """The shards of a round. A shard takes part in at most one move of each round.

    Attributes:
        shards: all of them.
    """

    def __init__(self, cluster: ClusterState) -> None:
        self.shards = cluster.shards
        self._busy: set[str] = set()

    def take(self, *shards: str) -> None:
        """Shards have got their move."""
        self._busy.update(shards)

    def free(self) -> Iterator[ShardState]:
        """The shards that may still get a move; those that get one while this is iterated are passed over."""
        return (shard for shard in self.shards if shard.is_available and shard.id not in self._busy)

    @property
    def is_over(self) -> bool:
        """Whether no further move is possible: it takes two shards."""
        return sum(1 for _ in self.free()) < 2

    def receivers(self, zone: str) -> list[ShardState]:
        """The free shards to which chunks of a zone may be moved."""
        return [shard for shard in self.free() if shard.may_receive(zone)]

    def least_loaded(self, zone: str, loads: Mapping[str, int]) -> ShardState | None:
        """The free shard with the smallest load to which chunks of a zone may be moved; None if there is none.

        Of several, it is the first by name, as in MongoDB.
        """
        return min(self.receivers(zone), key=lambda shard: loads.get(shard.id, 0), default=None)

    def most_loaded_first(self, loads: Mapping[str, int]) -> list[ShardState]:
        """The free shards by their load, in descending order."""
        return sorted(self.free(), key=lambda shard: -loads.get(shard.id, 0))
