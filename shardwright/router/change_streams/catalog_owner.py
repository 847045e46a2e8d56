"""Which shards' events stand for a change of a collection or database that is made on several shards.

It is the primary shard of the database at that time; for indexes and options of a sharded collection, all shards that
owned chunks: others may have received them with a chunk. Of a database that has been dropped, the changelog of the
config servers says which shard was its primary.
"""

from collections.abc import Collection

from bson.timestamp import Timestamp

from shardwright.config_servers.catalog_client import CatalogClient
from shardwright.router.change_streams.catalog_events import (
    CATALOG_EVENTS,
    INVALIDATE,
    OF_EACH_OWNER,
    changes_nothing,
    database_of,
    is_end_of_resharding,
    namespace_of,
)
from shardwright.router.change_streams.merger import Event
from shardwright.router.routing.routing_cache import RoutingCache
from shardwright.sharding.catalog.reads import read_database
from shardwright.sharding.targeting.past_placement import placement_at
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import decode_document

_DROP_BEGUN = "dropDatabase.start"
_MOVED = "movePrimary.commit"
_MOVED_AT = "details.movedAt"
_CREATED_AT = "details.databaseVersion.timestamp"


class CatalogOwner:
    """Decides which events only repeat that of another shard.

    Args:
        catalog: the config servers.
        routing: knows where collections are and were.
    """

    def __init__(self, catalog: CatalogClient, routing: RoutingCache) -> None:
        self._catalog = catalog
        self._routing = routing
        self._repeating: set[str] = set()

    async def is_repetition(self, event: Event, operation_type: str) -> bool:
        """Whether the event is to be left out, because another shard's event is about the same change, or none is due.

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
        if is_end_of_resharding(event.document):
            # For clients the collection is the same as before, though the shards have renamed another one to its name.
            self._repeating.add(event.source)
            return True
        if operation_type in OF_EACH_OWNER and not changes_nothing(event.document):
            return event.source not in await self._owners(event)
        owner = await self._owner(database_of(event.document), event)
        if owner != event.source:
            self._repeating.add(event.source)
        return owner != event.source

    async def _owners(self, event: Event) -> Collection[str]:
        """The shards that owned a part of an event's collection at that time; of an unsharded one the primary shard."""
        routing = await self._routing.find(namespace_of(event.document), is_sharding_confirmed=True)
        table, time = None if routing is None else routing.table, event.token.time
        if table is None or table.collection.uuid != event.token.collection_uuid or time < table.collection.timestamp:
            return {await self._owner(database_of(event.document), event)}
        try:
            return placement_at(table, time).shards
        except CommandError as error:
            if error.code != ErrorCode.StaleChunkHistory:
                raise
            return table.shards

    async def _owner(self, db: str, event: Event) -> str:
        """The primary shard that a database had at the time of an event.

        A database that was dropped and created again may have another one. The shard of the event itself if there is
        no trace of the database.
        """
        time = event.token.time
        entry = await self._catalog.read(read_database(db))
        if entry is not None and entry.version.timestamp <= time:
            return await self._before_moves(db, time) or entry.primary
        earlier = {"what": _DROP_BEGUN, "ns": db, _CREATED_AT: {"$lte": time}}
        dropped = await self._catalog.find("changelog", earlier, sort={_CREATED_AT: -1})
        if dropped:
            return str(decode_document(dropped[0])["shard"])
        return event.source if entry is None else entry.primary

    async def _before_moves(self, db: str, time: Timestamp) -> str | None:
        """The primary shard at a time from which the database has been moved since; None if it has not."""
        later = {"what": _MOVED, "ns": db, _MOVED_AT: {"$gte": time}}
        moved = await self._catalog.find("changelog", later, sort={_MOVED_AT: 1})
        return str(decode_document(moved[0])["details"]["from"]) if moved else None
