"""Pre-images and post-images for the events of a stream.

``updateLookup`` reads the current document. The shard that made a change stores its pre-image. A post-image is the
pre-image with the update applied by a mongod.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import bson

from shardwright.router.change_streams.catalog_events import namespace_of, operation_type
from shardwright.router.change_streams.changelog import UnshardedTimes
from shardwright.router.change_streams.commands import Commands
from shardwright.router.change_streams.errors import several_documents
from shardwright.router.change_streams.merger import Event
from shardwright.router.change_streams.specification import Image, Specification
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import OBJECT, append, decode_document, encode_elements, find, raw_document, without

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
