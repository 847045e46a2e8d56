"""What a shard answers to an operation that was routed by old knowledge."""

from typing import TYPE_CHECKING

from shardwright.wire.errors import CommandError

if TYPE_CHECKING:
    from shardwright.router.placement.collection_routing import CollectionRouting


class StaleRoutingError(Exception):
    """A shard refused an operation because the router's knowledge of where data is was out of date (or its own).

    Attributes:
        error: the shard's StaleConfig, StaleDbVersion, StaleEpoch or the like.
        involved: the routings of further collections that were used.
    """

    def __init__(self, error: CommandError) -> None:
        super().__init__(str(error))
        self.error = error
        self.involved: tuple[CollectionRouting, ...] = ()
