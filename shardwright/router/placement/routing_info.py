"""The routing of a database or a collection, and the shards that a read targets by it.

Shards refuse operations whose routing is stale (`StaleRoutingError`).
"""

from collections.abc import Mapping
from typing import Any, Final

from bson.timestamp import Timestamp

from shardwright.router.placement.limit_shares import LimitShares
from shardwright.sharding.clock import config_time_element
from shardwright.sharding.routing_table import RoutingTable
from shardwright.sharding.targeting.targets import placement_at, target_filter
from shardwright.sharding.targeting.values import effective, is_simple
from shardwright.sharding.versions import UNSHARDED, DatabaseVersion, database_version_element, shard_version_element
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import InvalidBSONError

_UNSHARDED_ELEMENT: Final = shard_version_element(UNSHARDED)


class DatabaseRouting:
    """The placement of a database's unsharded collections.

    Attributes:
        version: None for databases with a fixed placement.
        element: the ``databaseVersion`` element of commands to the primary shard, ready for `rawbson.append`. It is
            preceded by the config time, so that a shard with an older entry refreshes at least up to it.
        unsharded_elements: the version elements of commands on an unsharded collection.
    """

    __slots__ = ("element", "name", "primary", "unsharded_elements", "version")

    def __init__(self, name: str, primary: str, version: DatabaseVersion | None, config_time: int = 0) -> None:
        """Create the routing.

        Args:
            config_time: the config time at which the entry was read from the catalog, packed; 0 if unknown.
        """
        self.name = name
        self.primary = primary
        self.version = version
        self.element = self.unsharded_elements = b""
        if version is not None:
            bare = database_version_element(version)
            self.element = config_time_element(config_time) + bare if config_time else bare
            self.unsharded_elements = _UNSHARDED_ELEMENT + bare


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


def shards_for_read(
    routing: CollectionRouting,
    filter_document: bytes,
    collation: Mapping[str, Any] | None,
    time: Timestamp | None = None,
) -> tuple[str, ...]:
    """Return the shards that may hold matches of a filter, in order; the primary shard for an unsharded collection.

    Args:
        collation: the command's, None for the collection's default.
        time: of a snapshot, which targets the owners at that time.

    Raises:
        CommandError: InvalidBSON; StaleChunkHistory, the owners at that time are no longer known.
    """
    table = routing.table
    if table is None:
        return (routing.primary,)
    simple = is_simple(effective(collation, table.collection.default_collation))
    try:
        placement = table if time is None else placement_at(table, time)
        shards = target_filter(filter_document, placement, simple_collation=simple)
    except InvalidBSONError as error:
        raise CommandError(ErrorCode.InvalidBSON, str(error)) from error
    return tuple(shards) if len(shards) == 1 else tuple(sorted(shards))


def collation_unless_simple(
    routing: CollectionRouting, collation: Mapping[str, Any] | None
) -> Mapping[str, Any] | None:
    """Return the collation that applies to a sharded collection, None if it is the simple one."""
    default = None if routing.table is None else routing.table.collection.default_collation
    applied = effective(collation, default)
    return None if is_simple(applied) else applied


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
