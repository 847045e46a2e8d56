"""A shard's refusal of an operation with stale routing."""

from typing import TYPE_CHECKING

from shardwright.wire.errors import CommandError

if TYPE_CHECKING:
    from shardwright.router.placement.collection_routing import CollectionRouting


class StaleRoutingError(Exception):
    """A shard refused an operation because the router's routing, or its own metadata, was stale.

    Attributes:
        error: the shard's StaleConfig, StaleDbVersion, StaleEpoch or the like.
        involved: the routings of other collections involved.
    """

    def __init__(self, error: CommandError) -> None:
        super().__init__(str(error))
        self.error = error
        self.involved: tuple[CollectionRouting, ...] = ()
