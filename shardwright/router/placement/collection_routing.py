"""The routing of one collection."""

from shardwright.router.placement.database_routing import DatabaseRouting
from shardwright.router.placement.limit_shares import LimitShares
from shardwright.sharding.clock import config_time_element
from shardwright.sharding.routing_table import RoutingTable


class CollectionRouting:
    """The placement of one collection's documents.

    Attributes:
        namespace: ``db.collection``.
        limit_shares: the shards' shares of limited results.
    """

    __slots__ = ("_config_time", "_elements", "database", "limit_shares", "namespace", "primary", "table")

    def __init__(
        self, namespace: str, database: DatabaseRouting, table: RoutingTable | None, config_time: int = 0
    ) -> None:
        """Create the routing.

        Args:
            config_time: the config time at which it was read from the catalog, packed; 0 if unknown.
        """
        self._config_time = config_time_element(config_time) if config_time else b""
        self._elements: dict[str, bytes] = {}
        self.namespace = namespace
        self.database = database
        self.table = table
        self.primary = database.primary
        self.limit_shares = LimitShares()

    @property
    def is_sharded(self) -> bool:
        """Whether the collection has a routing table."""
        return self.table is not None

    @property
    def shards(self) -> frozenset[str]:
        """The shards that own a part of the collection."""
        return frozenset({self.primary}) if self.table is None else self.table.shards

    def versions_for(self, shard_id: str) -> bytes:
        """Return the version elements for a command to ``shard_id`` on the collection.

        They include the config time, so that a shard with an older placement refreshes at least up to it. The versions
        come last, where a shard can cut them off.
        """
        elements = self._elements.get(shard_id)
        if elements is None:
            versions = self._bare_versions_for(shard_id)
            elements = self._elements[shard_id] = self._config_time + versions if versions else b""
        return elements

    def _bare_versions_for(self, shard_id: str) -> bytes:
        if self.table is None:
            return self.database.unsharded_elements
        return self.table.shard_version_element(shard_id)
