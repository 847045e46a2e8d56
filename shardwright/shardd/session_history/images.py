"""Fetching the documents with which retries of findAndModify are answered."""

from collections.abc import Sequence
from typing import Final

from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.shardd.local_mongod.cursors import all_documents, find_cursor
from shardwright.shardd.session_history.oplog_history import HistoryEntry
from shardwright.shardd.session_history.session_chains import ENTRIES_PER_READ, OPLOG
from shardwright.shardd.session_history.statement import ExecutedStatement, SessionWrite, unpack_int64
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.timestamps import pack_timestamp, unpack_timestamp
from shardwright.wire.rawbson import decode_value, find, index, raw_document

_IMAGES: Final = Namespace("config", "image_collection")
_MAJORITY: Final = {"level": "majority"}

_EntryKey = tuple[SessionWrite, int]


class StatementsWithImages:
    """The statements of some entries with their images, which are too large to be read all at once.

    They come in another order than the entries. If an image is gone, retries of its statement will fail.

    Args:
        mongod: the local mongod.
        entries: the entries.

    Attributes:
        is_exhausted: whether all statements have been returned.
    """

    def __init__(self, mongod: LocalMongod, entries: Sequence[HistoryEntry]) -> None:
        self._mongod = mongod
        self._without_image: list[HistoryEntry] = []
        self._image_in_oplog: list[HistoryEntry] = []
        self._image_aside: dict[_EntryKey, HistoryEntry] = {}
        for entry in entries:
            if entry.image is None:
                self._without_image.append(entry)
            elif entry.image.time:
                self._image_in_oplog.append(entry)
            else:
                self._image_aside[entry.write, entry.time] = entry
        side_images = _find_side_images(self._image_aside)
        self._side_images = find_cursor(mongod, _IMAGES, side_images, options={"batchSize": ENTRIES_PER_READ})
        self.is_exhausted = not entries

    async def next_statements(self) -> list[ExecutedStatement]:
        """Some of them, with images of about 16 MB in all; possibly none although there are more.

        Raises:
            CommandError: mongod refuses, or a cursor was killed.
            BackendError: mongod does not answer.
        """
        statements = await self._next_statements()
        self.is_exhausted = not (self._without_image or self._image_in_oplog or self._image_aside)
        if self.is_exhausted:
            await self.close()
        return statements

    async def close(self) -> None:
        """Close the cursor, even when cancelled."""
        await self._side_images.close()

    async def _next_statements(self) -> list[ExecutedStatement]:
        if self._without_image:
            entries, self._without_image = self._without_image, []
            return [statement for entry in entries for statement in entry.statements]
        if self._image_in_oplog:
            entry = self._image_in_oplog.pop()
            assert entry.image is not None
            return _with_image(entry, await _noop_image(self._mongod, entry.image.time))
        batch = await self._side_images.next_documents()
        statements = [statement for raw in batch for statement in self._with_side_image(raw)]
        if not batch or self._side_images.is_exhausted:
            self._without_image, self._image_aside = [*self._image_aside.values()], {}
        return statements

    def _with_side_image(self, raw: bytes) -> list[ExecutedStatement]:
        """The statements of the entry that a document of ``config.image_collection`` belongs to, if that is asked for.

        The collection has the image of each session's last findAndModify.
        """
        fields = index(raw)
        lsid, image = fields[b"_id"], fields[b"image"]
        write = SessionWrite(raw[lsid[2] : lsid[3]], unpack_int64(raw, fields[b"txnNum"][2])[0])
        entry = self._image_aside.pop((write, pack_timestamp(decode_value(raw, fields[b"ts"]))), None)
        return [] if entry is None else _with_image(entry, raw[image[2] : image[3]])


def _find_side_images(wanted: dict[_EntryKey, HistoryEntry]) -> dict[str, object]:
    lsids = {write.lsid for write, _ in wanted}
    query = {"_id": {"$in": [raw_document(lsid) for lsid in lsids]}, "invalidated": {"$ne": True}}
    return {"filter": query, "readConcern": _MAJORITY}


def _with_image(entry: HistoryEntry, image: bytes | None) -> list[ExecutedStatement]:
    if image is None or entry.image is None:
        return [*entry.statements]
    return [each._replace(image=image, image_kind=entry.image.kind) for each in entry.statements]


async def _noop_image(mongod: LocalMongod, time: int) -> bytes | None:
    """The image in a no-op oplog entry, None if the entry is gone."""
    query = {"filter": {"ts": unpack_timestamp(time)}, "readConcern": _MAJORITY, "limit": 1, "singleBatch": True}
    for raw in await all_documents(mongod, OPLOG, query):
        image = find(raw, b"o")
        if image is not None:
            return raw[image[2] : image[3]]
    return None
