"""The events ``shardCollection``, of which the oplogs of the shards have only marks (``showExpandedEvents``).

A mark is a ``modify`` event that changes nothing, on the primary shard of the database. The changelog has an entry from
before and one from after it; what is between them is no user's.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from shardwright.config_servers.catalog_client import CatalogClient
from shardwright.router.change_streams.catalog_events import DESCRIPTION, changes_nothing, namespace_of
from shardwright.router.change_streams.merger import Event
from shardwright.router.routing.routing_cache import RoutingCache
from shardwright.sharding.catalog.reads import find_in_catalog
from shardwright.wire.rawbson import (
    decode_document,
    encode_document,
    index,
    string_value,
    with_value,
    without,
)

_BEGUN: Final = "shardCollection.start"
_DONE: Final = "shardCollection.end"
_SHARD_COLLECTION: Final = "shardCollection"
_OF_MODIFY: Final = frozenset({b"stateBeforeChange"})


class ShardingEvents:
    """Recognizes the marks.

    Args:
        catalog: the config servers.
        routing: knows what is sharded.
    """

    def __init__(self, catalog: CatalogClient, routing: RoutingCache) -> None:
        self._catalog = catalog
        self._routing = routing

    async def shown(self, event: Event) -> Event:
        """The event that clients see: ``shardCollection`` for a mark, any other event itself.

        Raises:
            CommandError: the config servers did not answer.
        """
        if not changes_nothing(event.document):
            return event
        request = await self._request(namespace_of(event.document), event)
        return event if request is None else replace(event, document=_as_sharding(event.document, request))

    async def _request(self, namespace: str, event: Event) -> Mapping[str, Any] | None:
        """The fields of the command that sharded the collection at the time of an event; None if none did."""
        time = event.token.time
        begun = await self._last(_BEGUN, namespace, {"details.markedAfter": {"$lt": time}}, {"details.markedAfter": -1})
        if begun is None:
            return None
        after = begun["details"]["markedAfter"]
        done = await self._last(_DONE, namespace, {"details.markedUntil": {"$gt": after}}, {"details.markedUntil": 1})
        if done is not None:
            is_mark = time <= done["details"]["markedUntil"]
        else:  # it is being sharded now, or that failed
            routing = await self._routing.find(namespace, is_sharding_confirmed=True)
            is_mark = routing is not None and routing.table is not None
        request: Mapping[str, Any] = begun["details"]["request"]
        return request if is_mark else None

    async def _last(
        self, what: str, namespace: str, query: Mapping[str, Any], sort: Mapping[str, int]
    ) -> Mapping[str, Any] | None:
        """The first entry of the changelog in an order, as new as anything that is known."""
        read = find_in_catalog("changelog", {"what": what, "ns": namespace, **query}, sort=sort)
        found = await self._catalog.read(read, as_of=self._catalog.clock.time.cluster_time)
        return decode_document(found[0]) if found else None


def _as_sharding(event: bytes, request: Mapping[str, Any]) -> bytes:
    event = without(event, _OF_MODIFY)
    event = with_value(event, index(event)[b"operationType"], string_value(_SHARD_COLLECTION))
    return with_value(event, index(event)[DESCRIPTION], encode_document(request))
