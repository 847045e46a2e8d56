"""The chunks of a collection that is defragmented, with their recorded sizes, read a page at a time."""

from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

from bson.binary import Binary

from shardwright.configd.catalog.catalog import Catalog
from shardwright.sharding.balancing.defragmentation import MeasuredChunk
from shardwright.sharding.catalog.collection_entry import CollectionEntry
from shardwright.sharding.chunks import ChunkRange
from shardwright.sharding.document_fields import required
from shardwright.wire.rawbson import encode_document, raw_document

SIZE_FIELD: Final = "estimatedDataSizeBytes"
"""The field of a chunk with its recorded size; a chunk that is written again loses it."""

_CHUNKS_PER_PAGE: Final = 1000


async def chunks_in_order(catalog: Catalog, entry: CollectionEntry) -> AsyncIterator[list[MeasuredChunk]]:
    """All chunks of a collection in pages; later pages show changes that were made meanwhile.

    Raises:
        CommandError: the mongod refused, or a chunk is malformed.
        BackendError: the mongod does not answer.
    """
    since: Mapping[str, Any] = {}
    while True:
        query = {**chunks_of(entry), **since}
        page = await catalog.find_some("chunks", query, sort={"min": 1}, limit=_CHUNKS_PER_PAGE)
        if page:
            yield [measured(document, entry) for document in page]
        if len(page) < _CHUNKS_PER_PAGE:
            return
        since = {"min": {"$gt": page[-1]["min"]}}


async def next_small_chunk(
    catalog: Catalog, entry: CollectionEntry, threshold: int, above: bytes | None
) -> MeasuredChunk | None:
    """The first small chunk that begins above a bound; None if there is none. Errors as `chunks_in_order`."""
    query: dict[str, Any] = {**chunks_of(entry), SIZE_FIELD: {"$lt": threshold}}
    if above is not None:
        query["min"] = {"$gt": raw_document(above)}
    document = await catalog.find_first("chunks", query, sort={"min": 1})
    return None if document is None else measured(document, entry)


async def neighbours_of(catalog: Catalog, entry: CollectionEntry, chunk: MeasuredChunk) -> list[MeasuredChunk]:
    """The chunks next to a chunk, in order. Errors as `chunks_in_order`."""
    below = {**chunks_of(entry), "min": {"$lt": raw_document(chunk.range.min)}}
    above = {**chunks_of(entry), "min": raw_document(chunk.range.max)}
    found = [
        await catalog.find_first("chunks", below, sort={"min": -1}),
        await catalog.find_first("chunks", above, sort={"min": 1}),
    ]
    return [measured(document, entry) for document in found if document is not None]


def chunks_of(entry: CollectionEntry) -> dict[str, Any]:
    """The query for all chunks of a collection."""
    return {"uuid": Binary.from_uuid(entry.uuid)}


def measured(document: Mapping[str, Any], entry: CollectionEntry) -> MeasuredChunk:
    """A chunk from its document."""
    low, high = (encode_document(required(document, name, Mapping)) for name in ("min", "max"))
    return MeasuredChunk(
        ChunkRange.of(entry.key, low, high), required(document, "shard", str), document.get(SIZE_FIELD)
    )
