"""Suppression of events for orphans that the TTL monitors of mongods delete.

A mongod does not know which documents its shard owns. Its TTL monitor therefore also deletes expired documents in
ranges that are being moved or await range deletion. A genuine shard marks these deletions as ``fromMigrate``. Here the
event has only the ``_id``. The router therefore reads the document on the same shard as of just before the event. If
the shard's ownership filter hides the document, it was an orphan. That costs a read per deletion, but only while
documents of the collection expire and the shard has ranges that may hold orphans.

One such deletion is a real event. The recipient of a range may delete its copy of an expired document before it owns
the range, and the donor may delete the document later. Both then delete orphans, and yet the document is gone. So a
donor's deletion is suppressed only if the recipient had the document when it received the range.
"""

from collections import defaultdict
from collections.abc import Sequence, Set
from functools import partial
from typing import Final

from bson.binary import Binary
from bson.timestamp import Timestamp

from shardwright.router.change_streams.catalog_events import namespace_of, operation_type
from shardwright.router.change_streams.commands import Commands, look_up_each
from shardwright.router.change_streams.merger import Event
from shardwright.router.routing.routing_cache import RoutingCache
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import OBJECT, find

_RANGE_DELETIONS: Final = "config.rangeDeletions"

_NOT_READABLE: Final = frozenset(
    {
        *(ErrorCode.SnapshotTooOld, ErrorCode.SnapshotUnavailable, ErrorCode.StaleChunkHistory),
        *(ErrorCode.NamespaceNotFound, ErrorCode.CollectionUUIDMismatch),
    }
)
"""Errors of a read at a time that is no longer kept, or of a dropped collection."""


class OrphanDeletions:
    """Suppresses deletions of orphans among the events of one stream.

    Args:
        commands: reads documents, and ranges that may hold orphans.
    """

    def __init__(self, routing: RoutingCache, commands: Commands) -> None:
        self._routing = routing
        self._commands = commands

    async def left_out(self, events: Sequence[Event]) -> list[Event]:
        """Return the events without deletions of orphans, as far as the shards' history shows orphans."""
        deletions: dict[tuple[str, str], list[Event]] = defaultdict(list)
        for event in events:
            # A deletion in a client's transaction has its session; TTL monitors have no session.
            if operation_type(event.document) == "delete" and find(event.document, b"lsid") is None:
                deletions[event.source, namespace_of(event.document)].append(event)
        orphans: set[str] = set()
        for (shard, namespace), found in deletions.items():
            if await self._may_be_orphans(shard, namespace, found):
                orphans |= await self._repeated(shard, namespace, found)
        return [event for event in events if event.token.data not in orphans] if orphans else [*events]

    async def _may_be_orphans(self, shard: str, namespace: str, events: Sequence[Event]) -> bool:
        """Whether documents of the collection expire, and the shard has or had ranges that may hold orphans."""
        routing = await self._routing.find(namespace)
        table = None if routing is None else routing.table
        if table is None or events[0].token.collection_uuid != table.collection.uuid:
            return False
        if not await self._commands.may_expire(shard, namespace):
            return False
        query = {"collectionUuid": Binary.from_uuid(table.collection.uuid)}
        if await self._commands.find_on_shard(shard, _RANGE_DELETIONS, query, {"_id": 1}, events[-1].token):
            return True
        before = _just_before(events[0].token.time)
        try:
            return bool(
                await self._commands.find_on_shard(
                    shard, _RANGE_DELETIONS, query, {"_id": 1}, events[0].token, at_time=before
                )
            )
        except CommandError as error:
            if error.code not in _NOT_READABLE:
                raise
            return False

    async def _repeated(self, shard: str, namespace: str, events: Sequence[Event]) -> Set[str]:
        """Return the tokens of the deletions to suppress."""
        ending = await look_up_each(events, partial(self._ended_document, shard, namespace))
        return {event.token.data for event, has_ended in zip(events, ending, strict=True) if not has_ended}

    async def _ended_document(self, shard: str, namespace: str, event: Event) -> bool:
        """Whether a deletion ended a document, rather than an orphan copy of a document that another shard owned."""
        key = find(event.document, b"documentKey")
        if key is None or key[0] != OBJECT:
            return True
        document = event.document[key[2] : key[3]]
        before = _just_before(event.token.time)
        is_orphan = False
        try:
            is_orphan = not await self._commands.was_on_shard(shard, namespace, document, event.token, before)
            return not is_orphan or not await self._was_handed_over(shard, namespace, event, document, before)
        except CommandError as error:
            if error.code not in _NOT_READABLE:
                raise
            return not is_orphan

    async def _was_handed_over(
        self, shard: str, namespace: str, event: Event, document_key: bytes, before: Timestamp
    ) -> bool:
        """Whether the recipient had the document when an orphan's shard gave its range away.

        True as well if the shard never owned the range.
        """
        routing = await self._routing.find(namespace)
        table = None if routing is None else routing.table
        if table is None or event.token.collection_uuid != table.collection.uuid:
            return True
        fields = {each.name.decode(): 1 for each in table.key_pattern.fields}
        found = await self._commands.find_on_shard(shard, namespace, document_key, fields, event.token, at_time=before)
        if not found:
            return True
        given = table.given_away(table.key_pattern.key_bytes_of_document(found[0]), shard, before)
        return given is None or await self._commands.was_on_shard(
            given[1], namespace, document_key, event.token, given[0]
        )


def _just_before(time: Timestamp) -> Timestamp:
    return Timestamp(time.time, time.inc - 1) if time.inc else Timestamp(time.time - 1, 2**32 - 1)
