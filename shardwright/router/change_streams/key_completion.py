"""Completing the ``documentKey`` of events by the shard keys of their collections.

Where neither the shard nor the stream's own images tell the shard key, the pre-image does if the collection records
them (``changeStreamPreAndPostImages``). Clients that have not asked for it do not see it.
"""

from collections import defaultdict
from collections.abc import Sequence, Set

from shardwright.router.change_streams.catalog_events import namespace_of
from shardwright.router.change_streams.document_keys import lacks_shard_key, with_shard_key
from shardwright.router.change_streams.merger import Event
from shardwright.router.change_streams.pre_images import PreImages
from shardwright.router.routing.routing_cache import RoutingCache
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.sharding.sharded_collection import ShardedCollection

_DOCUMENT_KEY = b"documentKey\0"


class KeyCompletion:
    """Completes the events of one stream.

    Args:
        routing: knows the shard keys.
        pre_images: reads them from the shards.
    """

    def __init__(self, routing: RoutingCache, pre_images: PreImages) -> None:
        self._routing = routing
        self._pre_images = pre_images

    async def completed(self, events: Sequence[Event], documents: Sequence[bytes]) -> list[bytes]:
        """The raw documents of events, each with as much of its ``documentKey`` as can be known.

        Args:
            events: as the shards have them.
            documents: the same events as the client is to see them, but for the shard key.

        Raises:
            CommandError: a shard or the config servers did not answer.
        """
        patterns = await self._patterns(events, documents)
        lacking: dict[tuple[str, ShardKeyPattern], list[Event]] = defaultdict(list)
        for event, document, pattern in zip(events, documents, patterns, strict=True):
            if pattern is not None and lacks_shard_key(document, pattern):
                lacking[event.source, pattern].append(event)
        images: dict[str, bytes] = {}
        for (_, pattern), found in lacking.items():
            images |= await self._pre_images.of_each(found, {field.path[0] for field in pattern.fields})
        return [
            document if pattern is None else with_shard_key(document, pattern, images.get(event.token.data))
            for event, document, pattern in zip(events, documents, patterns, strict=True)
        ]

    async def _patterns(self, events: Sequence[Event], documents: Sequence[bytes]) -> list[ShardKeyPattern | None]:
        """The shard key of each event's collection; None if the event needs none."""
        namespaces = [namespace_of(document) if _DOCUMENT_KEY in document else "" for document in documents]
        collections = await self._sharded(set(namespaces))
        return [
            _pattern(event, collections.get(namespace)) for event, namespace in zip(events, namespaces, strict=True)
        ]

    async def _sharded(self, namespaces: Set[str]) -> dict[str, ShardedCollection]:
        """The sharded collections of these names."""
        found = {}
        for namespace in namespaces:
            routing = await self._routing.find(namespace) if namespace else None
            if routing is not None and routing.table is not None:
                found[namespace] = routing.table.collection
        return found


def _pattern(event: Event, collection: ShardedCollection | None) -> ShardKeyPattern | None:
    # A collection of that name which was dropped may have had another shard key.
    is_of_event = collection is not None and event.token.collection_uuid == collection.uuid
    return collection.key_pattern if collection is not None and is_of_event else None
