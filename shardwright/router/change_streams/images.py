"""The versions of documents that a stream's events are to carry, looked up by the router.

``updateLookup`` reads the current document. A version from before a change is stored by the shard that made it; the
version right after an update results from that one and the update, which a mongod applies.
"""

from typing import Any, Final

import bson

from shardwright.router.change_streams.catalog_events import namespace_of, operation_type
from shardwright.router.change_streams.commands import Commands
from shardwright.router.change_streams.merger import Event
from shardwright.router.change_streams.pre_images import PRE_IMAGE_ID, PreImages
from shardwright.router.change_streams.specification import Image, Specification
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import OBJECT, append, decode_document, encode_elements, find, raw_document, without

_UPDATE: Final = b"rawOplogUpdateSpec"
_INTERNAL: Final = frozenset({PRE_IMAGE_ID, _UPDATE})


class Images:
    """Adds to events what their stream's ``fullDocument`` and ``fullDocumentBeforeChange`` ask for.

    Args:
        specification: of the stream.
        commands: reads documents as they are now.
        pre_images: reads documents from before a change.
    """

    def __init__(self, specification: Specification, commands: Commands, pre_images: PreImages) -> None:
        self._before_change = specification.before_change
        self._full_document = specification.full_document
        self._commands = commands
        self._pre_images = pre_images

    async def added_to(self, event: Event) -> bytes:
        """The raw event with the documents that it is to carry.

        Raises:
            CommandError: NoMatchingDocument, a required one is missing; or a shard failed.
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
        return await self._commands.find(namespace, event.document[key[2] : key[3]], event.token)


def without_internal_fields(event: bytes) -> bytes:
    """The raw event of a shard without the fields that are for the router."""
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
    """The event as mongod shows it in errors."""
    document = decode_document(event)
    kind, namespace, time = document["operationType"], document["ns"], document["clusterTime"]
    about = f'ns: {{db: "{namespace["db"]}", coll: "{namespace["coll"]}"}}'
    return f'{{operationType: "{kind}", {about}, clusterTime: Timestamp({time.time}, {time.inc})}}'
