"""The routing of one database."""

from typing import Final

from shardwright.sharding.clock import config_time_element
from shardwright.sharding.versions import UNSHARDED, DatabaseVersion, database_version_element, shard_version_element

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
