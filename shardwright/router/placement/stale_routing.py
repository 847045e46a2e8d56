"""Shards' refusals of operations with stale routing."""

from typing import TYPE_CHECKING

from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError

if TYPE_CHECKING:
    from shardwright.router.placement.collection_routing import CollectionRouting


class UnknownShardError(CommandError):
    """The catalog has no shard of that name (ShardNotFound). If cached routing named it, the routing is stale."""

    def __init__(self, shard_id: str) -> None:
        super().__init__(ErrorCode.ShardNotFound, f"Shard {shard_id} not found")


class StaleRoutingError(Exception):
    """A shard refused an operation because the router's routing or the shard's own metadata was stale.

    Attributes:
        error: the shard's StaleConfig, StaleDbVersion, StaleEpoch or similar error, or the error for a missing shard.
    """

    def __init__(self, error: CommandError) -> None:
        super().__init__(str(error))
        self.error = error
        self.involved: tuple[CollectionRouting, ...] = ()
