"""Which shard's event stands for a change of a collection or database that is made on several shards.

It is the primary shard of the database at that time. Of a database that has been dropped, the changelog of the config
servers says which one it was.
"""

from shardwright.config_servers.catalog_client import CatalogClient
from shardwright.router.change_streams.catalog_events import CATALOG_EVENTS, INVALIDATE, database_of
from shardwright.router.change_streams.merger import Event
from shardwright.sharding.catalog.reads import read_database
from shardwright.wire.rawbson import decode_document

_DROP_BEGUN = "dropDatabase.start"
_CREATED_AT = "details.databaseVersion.timestamp"


class CatalogOwner:
    """Decides which events only repeat that of another shard.

    Args:
        catalog: the config servers.
    """

    def __init__(self, catalog: CatalogClient) -> None:
        self._catalog = catalog
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
        owner = await self._owner(database_of(event.document), event)
        if owner != event.source:
            self._repeating.add(event.source)
        return owner != event.source

    async def _owner(self, db: str, event: Event) -> str:
        """The primary shard that a database had at the time of an event.

        A database that was dropped and created again may have another one. The shard of the event itself if there is
        no trace of the database.
        """
        time = event.token.time
        entry = await self._catalog.read(read_database(db))
        if entry is not None and entry.version.timestamp <= time:
            return entry.primary
        earlier = {"what": _DROP_BEGUN, "ns": db, _CREATED_AT: {"$lte": time}}
        dropped = await self._catalog.find("changelog", earlier, sort={_CREATED_AT: -1})
        if dropped:
            return str(decode_document(dropped[0])["shard"])
        return event.source if entry is None else entry.primary
