"""Completion of the ``documentKey`` of events with the shard key of their collection.

The mongods do not have the shard key, so their events identify a document by ``_id`` alone. The shard key values come
from a version of the document. That is the version in the event, or else the pre-image with the event's update applied.
Without either, ``documentKey`` stays unchanged.

The recorded pre-image (``changeStreamPreAndPostImages``) serves even if the client has not requested it; the client
does not receive it.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Final

from shardwright.router.change_streams.catalog_events import namespace_of
from shardwright.router.change_streams.changelog import UnshardedTimes
from shardwright.router.change_streams.images import PreImages
from shardwright.router.change_streams.merger import Event
from shardwright.router.routing.routing_cache import RoutingCache
from shardwright.sharding.shard_key import ShardKeyField, ShardKeyPattern, descend
from shardwright.sharding.sharded_collection import ShardedCollection
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import (
    ARRAY,
    EMPTY_DOCUMENT,
    OBJECT,
    Span,
    decode_value,
    element,
    from_elements,
    index,
    with_value,
)

_DESCRIPTION: Final = b"updateDescription"
_UPDATED: Final = b"updatedFields"
_REMOVED: Final = b"removedFields"

Value = tuple[int, bytes]
"""The type of a value, and its raw bytes."""


class UpdateDescription:
    """The ``updateDescription`` of an event; empty for an event without one."""

    def __init__(self, event: bytes, fields: Mapping[bytes, Span]) -> None:
        described = _embedded_or_empty(event, fields.get(_DESCRIPTION))
        parts = index(described)
        removed = parts.get(_REMOVED)
        names = decode_value(described, removed) if removed is not None and removed[0] == ARRAY else ()
        self._removed = frozenset(str(name).encode() for name in names)
        self._new = _embedded_or_empty(described, parts.get(_UPDATED))
        self._updated = index(self._new)

    def changes_part_of(self, field: ShardKeyField) -> bool:
        """Whether the update changed something inside the field's value, so that the event lacks the whole value."""
        below = field.name + b"."
        return any(name.startswith(below) for name in (*self._updated, *self._removed))

    def changes(self, field: ShardKeyField) -> bool:
        """Whether the update set or removed the field or one of its ancestors."""
        return any(path in self._updated or path in self._removed for path in field.ancestors)

    def new_value(self, field: ShardKeyField) -> Value | None:
        """Return the new value of a changed field, None if it was removed."""
        for levels, path in enumerate(field.ancestors, 1):
            span = self._updated.get(path)
            if span is not None:
                found = descend(self._new, span, field.path[levels:])
                return None if found is None else (found[0], self._new[found[2] : found[3]])
        return None


def _embedded_or_empty(document: bytes, span: Span | None) -> bytes:
    return document[span[2] : span[3]] if span is not None and span[0] == OBJECT else EMPTY_DOCUMENT


_DOCUMENT_KEY: Final = b"documentKey"
_ID: Final = b"_id"
_PRESENT: Final = b"fullDocument"
_BEFORE: Final = b"fullDocumentBeforeChange"

Values = Mapping[bytes, Value | None]
"""The shard key values of a document by field name; None for a missing field."""


def lacks_shard_key(event: bytes, pattern: ShardKeyPattern) -> bool:
    """Whether a raw event has neither the shard key in its ``documentKey`` nor a version of the document."""
    fields = index(event)
    key = fields.get(_DOCUMENT_KEY)
    if key is None or key[0] != OBJECT or _is_complete(event, key, pattern):
        return False
    return _embedded(event, fields.get(_PRESENT)) is None and _embedded(event, fields.get(_BEFORE)) is None


def with_shard_key(event: bytes, pattern: ShardKeyPattern, pre_image: bytes | None = None) -> bytes:
    """Add the shard key to the ``documentKey`` of a raw event, unless it is complete or the values are unknown.

    Args:
        pre_image: the raw pre-image, or at least its shard key fields, if the event does not contain it.
    """
    fields = index(event)
    key = fields.get(_DOCUMENT_KEY)
    if key is None or key[0] != OBJECT or _is_complete(event, key, pattern):
        return event
    present, before = _embedded(event, fields.get(_PRESENT)), _embedded(event, fields.get(_BEFORE)) or pre_image
    values: Values | None = None
    try:
        if present is not None:
            values = _values(present, pattern)
        elif before is not None:
            values = _updated_values(before, pattern, UpdateDescription(event, fields))
    except CommandError:
        return event  # an array, from before the collection had this shard key
    return event if values is None else with_value(event, key, _key(values, event, key))


def _is_complete(event: bytes, key: Span, pattern: ShardKeyPattern) -> bool:
    """Whether a ``documentKey`` has the shard key. A key without ``_id`` cannot be completed and counts as complete."""
    present = index(event, key[2])
    return _ID not in present or all(each.name in present for each in pattern.fields)


def _embedded(event: bytes, span: Span | None) -> bytes | None:
    return event[span[2] : span[3]] if span is not None and span[0] == OBJECT else None


def _values(document: bytes, pattern: ShardKeyPattern) -> Values:
    """Return the shard key values of a document, without hashing; raise ShardKeyNotFound for an array."""
    top_level = index(document)
    return {each.name: _value(document, each, top_level) for each in pattern.fields}


def _value(document: bytes, field: ShardKeyField, top_level: dict[bytes, Span]) -> Value | None:
    span = field.find_in(document, top_level)
    return None if span is None else (span[0], document[span[2] : span[3]])


def _updated_values(before: bytes, pattern: ShardKeyPattern, update: UpdateDescription) -> Values | None:
    """Return the shard key values after an update, as in MongoDB; None if the event does not suffice."""
    if any(update.changes_part_of(each) for each in pattern.fields):
        return None
    changed = {each.name: update.new_value(each) for each in pattern.fields if update.changes(each)}
    return {**_values(before, pattern), **changed}


def _key(values: Values, event: bytes, key: Span) -> bytes:
    """Return the shard key without missing fields, then ``_id`` unless it is part of the shard key, as in MongoDB."""
    present = index(event, key[2])
    return from_elements(b"".join(_elements(values, event, present[_ID])))


def _elements(values: Values, event: bytes, identifier: Span) -> Iterator[bytes]:
    for name, value in values.items():
        if value is not None:
            yield element(name, *value)
    if _ID not in values:
        yield event[identifier[1] : identifier[3]]


_DOCUMENT_KEY_FIELD = b"documentKey\0"


class KeyCompletion:
    """Completes the events of one stream.

    Args:
        unsharded: recognizes events from before the sharding, which ``_id`` alone identifies.
    """

    def __init__(self, routing: RoutingCache, pre_images: PreImages, unsharded: UnshardedTimes) -> None:
        self._routing = routing
        self._pre_images = pre_images
        self._unsharded = unsharded

    async def completed(self, events: Sequence[Event], documents: Sequence[bytes]) -> list[bytes]:
        """Return the raw documents of events, each with its ``documentKey`` completed as far as possible.

        Args:
            events: the events as received from the shards.
            documents: the same events as sent to the client, except for the shard key.
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
        """Return the shard key of each event's collection; None if the event needs no completion."""
        namespaces = [namespace_of(document) if _DOCUMENT_KEY_FIELD in document else "" for document in documents]
        collections = await self._sharded(set(namespaces))
        return [
            await self._pattern(event, collections.get(namespace))
            for event, namespace in zip(events, namespaces, strict=True)
        ]

    async def _pattern(self, event: Event, collection: ShardedCollection | None) -> ShardKeyPattern | None:
        # A dropped collection of the same name may have had another shard key.
        if collection is None or event.token.collection_uuid != collection.uuid:
            return None
        if await self._unsharded.of_collection_have(collection, event.token):
            return None
        return collection.key_pattern

    async def _sharded(self, namespaces: Set[str]) -> dict[str, ShardedCollection]:
        """Return the sharded collections among these names."""
        found = {}
        for namespace in namespaces:
            routing = await self._routing.find(namespace) if namespace else None
            if routing is not None and routing.table is not None:
                found[namespace] = routing.table.collection
        return found
