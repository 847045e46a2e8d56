"""Which shard's event stands for a change of a collection or database that is made on several shards.

It is the primary shard of the database. Once the database has been dropped, the changelog of the config servers says
which one it was.
"""

from shardwright.config_servers.catalog_client import CatalogClient
from shardwright.router.change_streams.catalog_events import CATALOG_EVENTS, INVALIDATE, database_of
from shardwright.router.change_streams.merger import Event
from shardwright.router.routing.routing_cache import RoutingCache
from shardwright.sharding.catalog.reads import read_database
from shardwright.wire.rawbson import decode_document

_DROP_BEGUN = "dropDatabase.start"


class CatalogOwner:
    """Decides which events only repeat that of another shard.

    Args:
        catalog: the config servers.
        routing: the cache of routing tables.
    """

    def __init__(self, catalog: CatalogClient, routing: RoutingCache) -> None:
        self._catalog = catalog
        self._routing = routing
        self._repeating: set[str] = set()

    async def is_repetition(self, event: Event, operation_type: str) -> bool:
        """Whether the event is to be left out, because another shard's event is about the same change.

        Raises:
            CommandError: the config servers did not answer.
        """
        if operation_type not in CATALOG_EVENTS:
            return False
        if operation_type == INVALIDATE:
            # It follows the event that it is about.
            is_repetition = event.source in self._repeating
            self._repeating.discard(event.source)
            return is_repetition
        self._repeating.discard(event.source)
        owner = await self._owner(database_of(event.document), event.source)
        if owner != event.source:
            self._repeating.add(event.source)
        return owner != event.source

    async def _owner(self, db: str, default: str) -> str:
        """The primary shard of a database, or the last one that it had."""
        known = self._routing.databases.get(db)
        if known is not None and known.primary == default:
            return default
        entry = await self._catalog.read(read_database(db))
        if entry is not None:
            return entry.primary
        dropped = await self._catalog.find("changelog", {"what": _DROP_BEGUN, "ns": db}, sort={"time": -1})
        return str(decode_document(dropped[0])["shard"]) if dropped else default
