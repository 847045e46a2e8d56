"""The config servers' changelog as a source about events: duplicates, and events that precede the sharding.

If several shards make the same change, the event of the database's primary shard at that time is passed on. For indexes
and options of a sharded collection, it is the events of all shards that owned chunks, because others may have received
the change with a chunk. For a dropped database, the changelog records its last primary shard.

The catalog entry of a collection has the time of its last change of shape. After `refineCollectionShardKey` that is
later than the time of `shardCollection`. The changelog distinguishes the two, because the shard daemon enters the time
before it shards a collection. Without such an entry, everything before the catalog's time counts as unsharded.

The oplogs record ``shardCollection`` (``showExpandedEvents``) only as a mark: a ``modify`` event without effect on the
primary shard of the database. The changelog has one entry from before and one from after the mark. Such an event
between the two does not come from a user's ``collMod``.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, Final
from uuid import UUID

from bson.timestamp import Timestamp

from shardwright.config_servers.catalog_client import CatalogClient
from shardwright.router.change_streams.catalog_events import (
    CATALOG_EVENTS,
    DESCRIPTION,
    INVALIDATE,
    OF_EACH_OWNER,
    changes_nothing,
    database_of,
    is_end_of_resharding,
    namespace_of,
)
from shardwright.router.change_streams.merger import Event
from shardwright.router.change_streams.tokens import ResumeToken
from shardwright.router.routing.routing_cache import RoutingCache
from shardwright.sharding.catalog.reads import find_in_catalog, read_database
from shardwright.sharding.routing_table import ShardedCollection
from shardwright.sharding.targeting.targets import placement_at
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import (
    decode_document,
    encode_document,
    index,
    string_value,
    with_value,
    without,
)

_DROP_BEGUN = "dropDatabase.start"
_MOVED = "movePrimary.commit"
_MOVED_AT = "details.movedAt"
_CREATED_AT = "details.databaseVersion.timestamp"


class CatalogOwner:
    """Detects catalog events that duplicate another shard's event.

    Args:
        routing: current and earlier placements of collections.
    """

    def __init__(self, catalog: CatalogClient, routing: RoutingCache) -> None:
        self._catalog = catalog
        self._routing = routing
        self._repeating: set[str] = set()

    async def is_repetition(self, event: Event, operation_type: str) -> bool:
        """Whether to omit the event: another shard's event covers the same change, or clients must not see any."""
        if operation_type not in CATALOG_EVENTS:
            return False
        if operation_type == INVALIDATE:
            # The invalidate event follows the event that invalidates the stream.
            is_repetition = event.source in self._repeating
            self._repeating.discard(event.source)
            return is_repetition
        self._repeating.discard(event.source)
        if is_end_of_resharding(event.document):
            # To clients it is the same collection as before, although the shards renamed another one to its name.
            self._repeating.add(event.source)
            return True
        if operation_type in OF_EACH_OWNER and not changes_nothing(event.document):
            return event.source not in await self._owners(event)
        owner = await self._owner(database_of(event.document), event)
        if owner != event.source:
            self._repeating.add(event.source)
        return owner != event.source

    async def _owners(self, event: Event) -> Collection[str]:
        """Return the shards that owned a part of an event's collection at that time.

        For an unsharded collection that is the primary shard of the database.
        """
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
        """Return the primary shard of a database at the time of an event.

        A database that was dropped and created again may have another primary shard now. Without any trace of the
        database, return the shard of the event.
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
        """Return the shard from which the database was moved first since a time; None if it was not moved."""
        later = {"what": _MOVED, "ns": db, _MOVED_AT: {"$gte": time}}
        moved = await self._catalog.find("changelog", later, sort={_MOVED_AT: 1})
        return str(decode_document(moved[0])["details"]["from"]) if moved else None


Incarnation = tuple[UUID, Timestamp]
"""The UUID and time of a collection in the catalog."""

_QUERY: Final = {"what": "shardCollection.start", "details.markedAfter": {"$exists": True}}
_NEWEST_FIRST: Final = {"details.markedAfter": -1}


class UnshardedTimes:
    """Compares events of one stream with the times at which their collections were sharded."""

    def __init__(self, catalog: CatalogClient, routing: RoutingCache) -> None:
        self._catalog = catalog
        self._routing = routing
        self._ends: dict[Incarnation, Timestamp] = {}

    async def has(self, namespace: str, token: ResumeToken) -> bool:
        """Whether an event precedes the sharding of its collection; false if the collection is not sharded."""
        routing = await self._routing.find(namespace)
        if routing is None or routing.table is None:
            return False
        return await self.of_collection_have(routing.table.collection, token)

    async def of_collection_have(self, collection: ShardedCollection, token: ResumeToken) -> bool:
        """Do the same as `has` for an event of a collection that is sharded now."""
        if token.collection_uuid != collection.uuid or token.time > collection.timestamp:
            return False
        return token.time <= await self._end(collection)

    async def _end(self, collection: ShardedCollection) -> Timestamp:
        key = collection.uuid, collection.timestamp
        if key not in self._ends:
            query = {"ns": str(collection.namespace), **_QUERY}
            read = find_in_catalog("changelog", query, sort=_NEWEST_FIRST)
            found = await self._catalog.read(read, as_of=self._catalog.clock.time.cluster_time)
            marked = (decode_document(each)["details"]["markedAfter"] for each in found)
            # A later mark belongs to another attempt to shard the collection.
            self._ends[key] = next((time for time in marked if time <= collection.timestamp), collection.timestamp)
        return self._ends[key]


_BEGUN: Final = "shardCollection.start"
_DONE: Final = "shardCollection.end"
_SHARD_COLLECTION: Final = "shardCollection"
_OF_MODIFY: Final = frozenset({b"stateBeforeChange"})


class ShardingEvents:
    """Recognizes the marks of ``shardCollection``."""

    def __init__(self, catalog: CatalogClient, routing: RoutingCache) -> None:
        self._catalog = catalog
        self._routing = routing

    async def shown(self, event: Event) -> Event:
        """Return the event for clients: ``shardCollection`` for a mark, any other event unchanged."""
        if not changes_nothing(event.document):
            return event
        request = await self._request(namespace_of(event.document), event)
        return event if request is None else replace(event, document=_as_sharding(event.document, request))

    async def _request(self, namespace: str, event: Event) -> Mapping[str, Any] | None:
        """Return the fields of the command that was sharding the collection at the time of an event, if any."""
        time = event.token.time
        begun = await self._last(_BEGUN, namespace, {"details.markedAfter": {"$lt": time}}, {"details.markedAfter": -1})
        if begun is None:
            return None
        after = begun["details"]["markedAfter"]
        done = await self._last(_DONE, namespace, {"details.markedUntil": {"$gt": after}}, {"details.markedUntil": 1})
        if done is not None:
            is_mark = time <= done["details"]["markedUntil"]
        else:  # sharding is in progress, or has failed
            routing = await self._routing.find(namespace, is_sharding_confirmed=True)
            is_mark = routing is not None and routing.table is not None
        request: Mapping[str, Any] = begun["details"]["request"]
        return request if is_mark else None

    async def _last(
        self, what: str, namespace: str, query: Mapping[str, Any], sort: Mapping[str, int]
    ) -> Mapping[str, Any] | None:
        """Return the first changelog entry in a sort order, read at the newest known cluster time."""
        read = find_in_catalog("changelog", {"what": what, "ns": namespace, **query}, sort=sort)
        found = await self._catalog.read(read, as_of=self._catalog.clock.time.cluster_time)
        return decode_document(found[0]) if found else None


def _as_sharding(event: bytes, request: Mapping[str, Any]) -> bytes:
    event = without(event, _OF_MODIFY)
    event = with_value(event, index(event)[b"operationType"], string_value(_SHARD_COLLECTION))
    return with_value(event, index(event)[DESCRIPTION], encode_document(request))
