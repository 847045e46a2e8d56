"""Leaving out the deletions of orphans by the TTL monitors of mongods.

A mongod does not know which documents its shard owns. So its TTL monitor also deletes expired documents in ranges that
are being moved or wait to be deleted. A genuine shard marks these deletions as ``fromMigrate``. Here the event has only
the ``_id``. The router therefore reads the document on the same shard as of just before the event: if it was an orphan
then, the shard hides it. That costs a read per deletion, but only while documents of the collection expire and the
shard has ranges that may hold orphans.
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

_NOT_READABLE: Final = frozenset(
    {
        *(ErrorCode.SnapshotTooOld, ErrorCode.SnapshotUnavailable, ErrorCode.StaleChunkHistory),
        *(ErrorCode.NamespaceNotFound, ErrorCode.CollectionUUIDMismatch),
    }
)
"""Errors of a read at a time that is no longer kept, or of a collection that is gone."""


class OrphanDeletions:
    """Finds them among the events of one stream.

    Args:
        routing: knows which collections are sharded.
        commands: reads documents, and ranges that may hold orphans.
    """

    def __init__(self, routing: RoutingCache, commands: Commands) -> None:
        self._routing = routing
        self._commands = commands

    async def left_out(self, events: Sequence[Event]) -> list[Event]:
        """The events without deletions of orphans, as far as the shards still know what was an orphan.

        Raises:
            CommandError: a shard or the config servers did not answer.
        """
        deletions: dict[tuple[str, str], list[Event]] = defaultdict(list)
        for event in events:
            # A deletion in a client's transaction has its session; TTL monitors use none.
            if operation_type(event.document) == "delete" and find(event.document, b"lsid") is None:
                deletions[event.source, namespace_of(event.document)].append(event)
        orphans: set[str] = set()
        for (shard, namespace), found in deletions.items():
            if await self._may_be_orphans(shard, namespace, found):
                orphans |= await self._of_orphans(shard, namespace, found)
        return [event for event in events if event.token.data not in orphans] if orphans else [*events]

    async def _may_be_orphans(self, shard: str, namespace: str, events: Sequence[Event]) -> bool:
        """Whether documents of the collection expire, and the shard has ranges that may hold orphans, or had some."""
        routing = await self._routing.find(namespace)
        table = None if routing is None else routing.table
        if table is None or events[0].token.collection_uuid != table.collection.uuid:
            return False
        if not await self._commands.may_expire(shard, namespace):
            return False
        query = {"collectionUuid": Binary.from_uuid(table.collection.uuid)}
        if await self._commands.find_on_shard(shard, "rangeDeletions", query, {"_id": 1}, events[-1].token):
            return True
        before = _just_before(events[0].token.time)
        try:
            return bool(
                await self._commands.find_on_shard(
                    shard, "rangeDeletions", query, {"_id": 1}, events[0].token, at_time=before
                )
            )
        except CommandError as error:
            if error.code not in _NOT_READABLE:
                raise
            return False

    async def _of_orphans(self, shard: str, namespace: str, events: Sequence[Event]) -> Set[str]:
        """The tokens of those deletions whose documents the shard hid before."""
        visible = await look_up_each(events, partial(self._was_visible, shard, namespace))
        return {event.token.data for event, was_visible in zip(events, visible, strict=True) if not was_visible}

    async def _was_visible(self, shard: str, namespace: str, event: Event) -> bool:
        key = find(event.document, b"documentKey")
        if key is None or key[0] != OBJECT:
            return True
        document = event.document[key[2] : key[3]]
        before = _just_before(event.token.time)
        try:
            return await self._commands.was_on_shard(shard, namespace, document, event.token, before)
        except CommandError as error:
            if error.code not in _NOT_READABLE:
                raise
            return True


def _just_before(time: Timestamp) -> Timestamp:
    return Timestamp(time.time, time.inc - 1) if time.inc else Timestamp(time.time - 1, 2**32 - 1)
