"""Refusals of operations with stale routing."""

from typing import TYPE_CHECKING

from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError

if TYPE_CHECKING:
    from shardwright.router.placement.collection_routing import CollectionRouting


class UnknownShardError(CommandError):
    """The catalog has no shard of that name (ShardNotFound): if cached routing named it, that is out of date."""

    def __init__(self, shard_id: str) -> None:
        super().__init__(ErrorCode.ShardNotFound, f"Shard {shard_id} not found")


class StaleRoutingError(Exception):
    """A shard refused an operation because the router's routing, or its own metadata, was stale; or it is gone.

    Attributes:
        error: the shard's StaleConfig, StaleDbVersion, StaleEpoch or the like; or that there is no such shard.
        involved: the routings of other collections involved.
    """

    def __init__(self, error: CommandError) -> None:
        super().__init__(str(error))
        self.error = error
        self.involved: tuple[CollectionRouting, ...] = ()
