"""What an operation goes by from its admission to its end, whatever is learnt or forgotten of its collection meanwhile.

An operation whose collection is forgotten while it waits has not become one on an unsharded collection: it would see
orphans, and change shard keys that it must not change.
"""

from typing import NamedTuple, Self

from shardwright.shardd.metadata.namespace_state import NamespaceState
from shardwright.shardd.orphans.ownership_filter import OwnershipFilter
from shardwright.sharding.routing_table import RoutingTable
from shardwright.sharding.shard_key import ShardKeyPattern


class AdmittedPlacement(NamedTuple):
    """The metadata of a collection as an operation was admitted by it.

    Attributes:
        table: the routing table; None for an unsharded collection.
        mutable_key: the part of the shard key that updates could change.
        orphans: what hides orphans; None if there are none.
    """

    table: RoutingTable | None
    mutable_key: ShardKeyPattern | None
    orphans: OwnershipFilter | None

    @classmethod
    def of(cls, state: NamespaceState) -> Self:
        """That of an operation that has just been counted in."""
        return cls(state.table, state.mutable_key, state.orphans)
