"""Versions of documents from before a change, which the shard that made the change keeps in ``config``."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from shardwright.router.change_streams.commands import Commands
from shardwright.router.change_streams.merger import Event
from shardwright.wire.rawbson import OBJECT, find, raw_document

PRE_IMAGE_ID: Final = b"preImageId"
"""The field by which a shard's event names its pre-image, whether there is one or not."""

_COLLECTION: Final = "config.system.preimages"


class PreImages:
    """Reads them.

    Args:
        commands: of the stream.
    """

    def __init__(self, commands: Commands) -> None:
        self._commands = commands

    async def of(self, event: Event) -> bytes | None:
        """The whole document from before an event; None if it was not recorded, or is no longer kept.

        Raises:
            CommandError: the shard failed.
        """
        return (await self.of_each([event])).get(event.token.data)

    async def of_each(self, events: Sequence[Event], top_level: Collection[bytes] = ()) -> Mapping[str, bytes]:
        """The documents from before events of one shard, by the events' tokens. Those that are not kept are missing.

        Args:
            events: the events.
            top_level: the only fields that are wanted; all if there are none.

        Raises:
            CommandError: the shard failed.
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
