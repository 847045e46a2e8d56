"""Fetching the documents with which retries of findAndModify are answered."""

from collections.abc import Sequence
from typing import Final

from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.shardd.local_mongod.pooled_cursor import all_documents
from shardwright.shardd.session_history.oplog_history import HistoryEntry
from shardwright.shardd.session_history.session_chains import OPLOG
from shardwright.shardd.session_history.statement import ExecutedStatement, SessionWrite
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.timestamps import pack_timestamp, unpack_timestamp
from shardwright.wire.rawbson import decode_document, find, index, raw_document

_IMAGES: Final = Namespace("config", "image_collection")
_MAJORITY: Final = {"level": "majority"}


async def statements_with_images(mongod: LocalMongod, entries: Sequence[HistoryEntry]) -> list[ExecutedStatement]:
    """The statements of all entries, with their images. If an image is gone, retries of its statement will fail.

    Raises:
        CommandError: mongod refuses.
        BackendError: mongod does not answer.
    """
    wanted = [each for each in entries if each.image is not None]
    images = await _side_images(mongod, wanted) if wanted else {}
    statements: list[ExecutedStatement] = []
    for entry in entries:
        image: bytes | None = None
        if entry.image is not None:
            image = await _noop_image(mongod, entry.image.time) if entry.image.time else _image_of(images, entry)
        if entry.image is None or image is None:
            statements += entry.statements
        else:
            kind = entry.image.kind
            statements += [each._replace(image=image, image_kind=kind) for each in entry.statements]
    return statements


def _image_of(images: dict[tuple[SessionWrite, int], bytes], entry: HistoryEntry) -> bytes | None:
    return images.get((entry.write, entry.time))


async def _side_images(mongod: LocalMongod, entries: Sequence[HistoryEntry]) -> dict[tuple[SessionWrite, int], bytes]:
    """The images in ``config.image_collection``, which has that of each session's last findAndModify."""
    lsids = {each.write.lsid for each in entries}
    query = {"_id": {"$in": [raw_document(lsid) for lsid in lsids]}, "invalidated": {"$ne": True}}
    found: dict[tuple[SessionWrite, int], bytes] = {}
    for raw in await all_documents(mongod, _IMAGES, {"filter": query, "readConcern": _MAJORITY}):
        fields = index(raw)
        lsid, image = fields[b"_id"], fields[b"image"]
        rest = decode_document(raw)
        write = SessionWrite(raw[lsid[2] : lsid[3]], rest["txnNum"])
        found[write, pack_timestamp(rest["ts"])] = raw[image[2] : image[3]]
    return found


async def _noop_image(mongod: LocalMongod, time: int) -> bytes | None:
    """The image in a no-op oplog entry, None if the entry is gone."""
    query = {"filter": {"ts": unpack_timestamp(time)}, "readConcern": _MAJORITY, "limit": 1, "singleBatch": True}
    for raw in await all_documents(mongod, OPLOG, query):
        image = find(raw, b"o")
        if image is not None:
            return raw[image[2] : image[3]]
    return None
