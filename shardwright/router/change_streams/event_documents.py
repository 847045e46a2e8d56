"""The documents of events: their images, and the ``documentKey`` completed with the shard key of the collection.

``updateLookup`` reads the current document. The shard that made a change stores its pre-image. A post-image is the
pre-image with the update applied by a mongod.

The mongods do not have the shard key, so their events identify a document by ``_id`` alone. The shard key values come
from a version of the document. That is the version in the event, or else the pre-image with the event's update applied.
Without either, ``documentKey`` stays unchanged. The recorded pre-image (``changeStreamPreAndPostImages``) serves even
if the client has not requested it; the client does not receive it.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from typing import Any, Final

import bson

from shardwright.router.change_streams.catalog_events import namespace_of, operation_type
from shardwright.router.change_streams.changelog import UnshardedTimes
from shardwright.router.change_streams.commands import Commands
from shardwright.router.change_streams.errors import several_documents
from shardwright.router.change_streams.merger import Event
from shardwright.router.change_streams.specification import Image, Specification
from shardwright.router.routing.routing_cache import RoutingCache
from shardwright.sharding.routing_table import ShardedCollection
from shardwright.sharding.shard_key import ShardKeyField, ShardKeyPattern, descend
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import (
    ARRAY,
    EMPTY_DOCUMENT,
    OBJECT,
    Span,
    append,
    decode_document,
    decode_value,
    element,
    encode_elements,
    find,
    from_elements,
    index,
    raw_document,
    with_value,
    without,
)

PRE_IMAGE_ID: Final = b"preImageId"
"""The field of a shard's event that identifies its pre-image, whether one was recorded or not."""

_COLLECTION: Final = "config.system.preimages"


class PreImages:
    """Reads recorded pre-images."""

    def __init__(self, commands: Commands) -> None:
        self._commands = commands

    async def of(self, event: Event) -> bytes | None:
        """Return an event's pre-image; None if it was not recorded, or is no longer kept."""
        return (await self.of_each([event])).get(event.token.data)

    async def of_each(self, events: Sequence[Event], top_level: Collection[bytes] = ()) -> Mapping[str, bytes]:
        """Return the pre-images of events of one shard, by the events' tokens. Unavailable ones are missing.

        Args:
            top_level: the only fields to read; empty for all.
        """
        identified = {identifier: event for event in events if (identifier := _identifier(event)) is not None}
        if not identified:
            return {}
        query = {"_id": {"$in": [raw_document(identifier) for identifier in identified]}}
        projection: dict[str, Any] = {f"preImage.{name.decode()}": 1 for name in sorted(top_level)}
        newest = max(event.token for event in identified.values())
        found = await self._commands.find_on_shard(events[0].source, _COLLECTION, query, projection, newest)
        images = {}
        for document in found:
            own_id, image = find(document, b"_id"), find(document, b"preImage")
            if own_id is not None and image is not None:
                event = identified[document[own_id[2] : own_id[3]]]
                images[event.token.data] = document[image[2] : image[3]]
        return images


def _identifier(event: Event) -> bytes | None:
    span = find(event.document, PRE_IMAGE_ID)
    return event.document[span[2] : span[3]] if span is not None and span[0] == OBJECT else None


_UPDATE: Final = b"rawOplogUpdateSpec"
_INTERNAL: Final = frozenset({PRE_IMAGE_ID, _UPDATE})


class Images:
    """Adds the images that their stream's ``fullDocument`` and ``fullDocumentBeforeChange`` request.

    Args:
        unsharded: recognizes events from before the sharding, which ``_id`` alone identifies.
    """

    def __init__(
        self, specification: Specification, commands: Commands, pre_images: PreImages, unsharded: UnshardedTimes
    ) -> None:
        self._before_change = specification.before_change
        self._full_document = specification.full_document
        self._commands = commands
        self._pre_images = pre_images
        self._unsharded = unsharded

    async def added_to(self, event: Event) -> bytes:
        """Return the raw event with its images.

        Raises:
            CommandError: NoMatchingDocument, a required image is missing; ChangeStreamFatalError, several documents
                have the ``_id`` of an event from before the collection was sharded.
        """
        document = event.document
        kind = operation_type(document)
        bare = without_internal_fields(document)
        if kind not in ("update", "replace", "delete"):
            return bare
        pre_image = await self._pre_images.of(event) if self._needs_pre_image(kind) else None
        if self._before_change not in (Image.OFF, Image.DEFAULT):
            if pre_image is None and self._before_change == Image.REQUIRED:
                raise _missing("pre-image", "update, delete and replace", bare)
            bare = append(bare, _element("fullDocumentBeforeChange", pre_image))
        if kind != "update" or self._full_document == Image.DEFAULT:
            return bare
        post_image = await self._post_image(event, pre_image)
        if post_image is None and self._full_document == Image.REQUIRED:
            raise _missing("post-image", "update", bare)
        return append(bare, _element("fullDocument", post_image))

    def _needs_pre_image(self, kind: str) -> bool:
        is_for_update = kind == "update" and self._full_document in (Image.WHEN_AVAILABLE, Image.REQUIRED)
        return is_for_update or self._before_change in (Image.WHEN_AVAILABLE, Image.REQUIRED)

    async def _post_image(self, event: Event, pre_image: bytes | None) -> bytes | None:
        if self._full_document == Image.UPDATE_LOOKUP:
            return await self._present(event)
        update = find(event.document, _UPDATE)
        if pre_image is None or update is None or update[0] != OBJECT:
            return None
        change = raw_document(event.document[update[2] : update[3]])
        stage = bson.encode({"$_internalApplyOplogUpdate": {"oplogUpdate": change}})
        return (await self._commands.evaluate([pre_image], [stage]))[0]

    async def _present(self, event: Event) -> bytes | None:
        key = find(event.document, b"documentKey")
        namespace = namespace_of(event.document)
        if key is None or key[0] != OBJECT or not namespace:
            return None
        document_key = event.document[key[2] : key[3]]
        found = await self._commands.find(namespace, document_key, event.token)
        if len(found) > 1 and await self._unsharded.has(namespace, event.token):
            raise several_documents(document_key, found.values())
        # A mongod omits the shard key, so documents on other shards may match with the same `_id`.
        return found.get(event.source, next(iter(found.values()), None))


def without_internal_fields(event: bytes) -> bytes:
    """Remove the router's own fields from the raw event of a shard."""
    return without(event, _INTERNAL) if any(name in event for name in _INTERNAL) else event


def _element(name: str, document: bytes | None) -> bytes:
    value: Any = None if document is None else raw_document(document)
    return encode_elements({name: value})


def _missing(image: str, operations: str, event: bytes) -> CommandError:
    return CommandError(
        ErrorCode.NoMatchingDocument,
        f"Change stream was configured to require a {image} for all {operations} events, but the {image} was not "
        f"found for event: {_described(event)}",
    )


def _described(event: bytes) -> str:
    """Format an event as mongod shows it in errors."""
    document = decode_document(event)
    kind, namespace, time = document["operationType"], document["ns"], document["clusterTime"]
    about = f'ns: {{db: "{namespace["db"]}", coll: "{namespace["coll"]}"}}'
    return f'{{operationType: "{kind}", {about}, clusterTime: Timestamp({time.time}, {time.inc})}}'


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
