"""Answers to the policy's queries: look-ups in the indexes of ``config.chunks``."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

import trio
from bson.binary import Binary

from shardwright.configd.catalog.catalog import Catalog
from shardwright.sharding.balancing.chunk_queries import (
    Answer,
    Asking,
    Candidate,
    ChunkCounts,
    ChunksAcross,
    FirstChunk,
    Question,
    Result,
)
from shardwright.sharding.catalog.collection_entry import CollectionEntry
from shardwright.sharding.chunks import ChunkRange
from shardwright.sharding.document_fields import required
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.rawbson import encode_document, raw_document

_BY_SHARD: Final = {"uuid": 1, "shard": 1, "min": 1}
_RANGES_PER_QUERY: Final = 100
_BOUNDS_PER_QUERY: Final = 1000
_RANGES_PER_COUNT: Final = 4
"""Maximum number of ranges that are counted one by one; for more, one query counts the chunks of all shards."""


class ChunkAnswers:
    """Answers from the catalog, for the collections of one round.

    Args:
        shards: the names of all shards.
        collections: the entries by namespace.
        held_back: by namespace, the lower bounds of chunks that must not be moved now.
    """

    def __init__(
        self,
        catalog: Catalog,
        shards: Collection[str],
        collections: Mapping[str, CollectionEntry],
        held_back: Mapping[str, Sequence[bytes]],
    ) -> None:
        self._catalog = catalog
        self._shards = shards
        self._collections = collections
        self._held_back = held_back

    async def drive(self, asking: Asking[Result]) -> Result:
        """Run a generator of the policy with answers from the catalog; returns its result.

        Errors as `Catalog.find`, and a CommandError for a malformed chunk.
        """
        try:
            question = next(asking)
            while True:
                question = asking.send(await self.answer(question))
        except StopIteration as stop:
            result: Result = stop.value
            return result

    async def answer(self, question: Question) -> Answer:
        """Answer one query from the catalog; errors as `drive`."""
        collection = self._collections[str(question.namespace)]
        match question:
            case FirstChunk():
                return await self._first_chunk(question, collection)
            case ChunkCounts():
                return await self._counts(question, collection)
            case ChunksAcross():
                return await self._chunks_across(question, collection)

    async def _first_chunk(self, question: FirstChunk, collection: CollectionEntry) -> Answer:
        held_back = [raw_document(bound) for bound in self._held_back.get(str(collection.namespace), ())]
        if question.is_movable:
            wanted: list[dict[str, Any]] = [{"jumbo": {"$ne": True}}, {"min": {"$nin": held_back}}]
        else:
            wanted = [{"$or": [{"jumbo": True}, {"min": {"$in": held_back}}]}]
        owned = {**_of(collection), "shard": question.shard}
        for ranges in _batches(question.within):
            query = {"$and": [_within(owned, ranges), *wanted]}
            document = await self._catalog.find_first("chunks", query, sort={"min": 1})
            if document is not None:
                return Answer((_candidate(document, collection),))
        return Answer()

    async def _counts(self, question: ChunkCounts, collection: CollectionEntry) -> Answer:
        if question.within is None or len(question.within) <= _RANGES_PER_COUNT:
            return Answer(counts=await self._counts_by_shard(question, collection))
        counts: dict[str, int] = {}
        for ranges in _batches(question.within):
            pipeline = [
                {"$match": _within(_of(collection), ranges)},
                {"$group": {"_id": "$shard", "number": {"$sum": 1}}},
            ]
            for each in await self._catalog.aggregate("chunks", pipeline, hint=_BY_SHARD):
                counts[each["_id"]] = counts.get(each["_id"], 0) + int(each["number"])
        return Answer(counts=counts)

    async def _counts_by_shard(self, question: ChunkCounts, collection: CollectionEntry) -> dict[str, int]:
        """Count the chunks of all shards concurrently."""
        counts: dict[str, int] = {}
        errors: list[CommandError | BackendError] = []

        async def count(shard: str) -> None:
            try:
                counts[shard] = await self._count(shard, question, collection)
            except (CommandError, BackendError) as error:
                errors.append(error)

        async with trio.open_nursery() as nursery:
            for shard in self._shards:
                nursery.start_soon(count, shard)
        for error in errors:
            raise error
        return counts

    async def _count(self, shard: str, question: ChunkCounts, collection: CollectionEntry) -> int:
        """Count the chunks of one shard in the index alone, which is several times as fast as grouping them."""
        owned = {**_of(collection), "shard": shard}
        queries = [owned] if question.within is None else [_within(owned, (each,)) for each in question.within]
        return sum([await self._catalog.count("chunks", query, hint=_BY_SHARD) for query in queries])

    async def _chunks_across(self, question: ChunksAcross, collection: CollectionEntry) -> Answer:
        """Find chunks with zone bounds inside: look up the chunk around each bound at which no chunk begins."""
        encode = collection.key.key_bytes
        bounds = iter(question.zones.bounds)
        found: dict[bytes, Candidate] = {}
        while batch := list(islice(bounds, _BOUNDS_PER_QUERY)):
            query = {**_of(collection), "min": {"$in": [raw_document(each.min) for each in batch]}}
            begun = {encode(encode_document(each["min"])) for each in await self._catalog.find("chunks", query)}
            for bound in (each for each in batch if each.min_key not in begun):
                below = {**_of(collection), "min": {"$lte": raw_document(bound.min)}}
                document = await self._catalog.find_first("chunks", below, sort={"min": -1})
                if document is not None:
                    candidate = _candidate(document, collection)
                    if question.zones.bounds_inside(candidate.range):
                        found[candidate.range.min_key] = candidate
        return Answer(tuple(found.values()))


def _of(collection: CollectionEntry) -> dict[str, Any]:
    return {"uuid": Binary.from_uuid(collection.uuid)}


def _within(query: Mapping[str, Any], ranges: Sequence[ChunkRange] | None) -> dict[str, Any]:
    """Extend a query to chunks that begin in one of the ranges; each range is one index scan."""
    if ranges is None:
        return dict(query)
    branches = [{**query, "min": {"$gte": raw_document(each.min), "$lt": raw_document(each.max)}} for each in ranges]
    return branches[0] if len(branches) == 1 else {"$or": branches}


def _batches(ranges: tuple[ChunkRange, ...] | None) -> Iterator[tuple[ChunkRange, ...] | None]:
    if ranges is None:
        yield None
        return
    rest = iter(ranges)
    while batch := tuple(islice(rest, _RANGES_PER_QUERY)):
        yield batch


def _candidate(document: Mapping[str, Any], collection: CollectionEntry) -> Candidate:
    low, high = (encode_document(required(document, name, Mapping)) for name in ("min", "max"))
    return Candidate(ChunkRange.of(collection.key, low, high), required(document, "shard", str))
