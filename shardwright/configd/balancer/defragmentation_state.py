"""The state before a step of a defragmentation: collection, settings, shards, zones, recorded progress, chunks.

Chunks are read a page at a time, with their recorded sizes. The decision about a small chunk is made here, for both the
defragmentation and its explanation. Reads raise the errors of `Catalog.find`, writes of `Catalog.update_many`.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from bson.binary import Binary

from shardwright.configd.balancer.cluster_view import Configuration, chunk_bytes_max
from shardwright.configd.catalog.catalog import Catalog
from shardwright.configd.term.term import Term
from shardwright.sharding.balancing.cluster_state import NO_ZONE, Rule, Skipped, ZoneMap
from shardwright.sharding.balancing.defragmentation import (
    UNKNOWN_SHARD,
    MeasuredChunk,
    Phase,
    Union,
    choose_union,
    small_bytes,
    stays,
    why_alone,
)
from shardwright.sharding.catalog.documents import CollectionEntry, ShardEntry, TagEntry
from shardwright.sharding.chunks import ChunkRange
from shardwright.sharding.document_fields import required
from shardwright.wire.rawbson import encode_document, raw_document

SIZE_FIELD: Final = "estimatedDataSizeBytes"
"""The field of a chunk with its recorded size; any later write of the chunk removes it."""

_CHUNKS_PER_PAGE: Final = 1000


async def chunks_in_order(catalog: Catalog, entry: CollectionEntry) -> AsyncIterator[list[MeasuredChunk]]:
    """Yield all chunks of a collection in pages; later pages show changes made since the first."""
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
    """Return the first small chunk that begins above a bound, or None. Errors as `chunks_in_order`."""
    query: dict[str, Any] = {**chunks_of(entry), SIZE_FIELD: {"$lt": threshold}}
    if above is not None:
        query["min"] = {"$gt": raw_document(above)}
    document = await catalog.find_first("chunks", query, sort={"min": 1})
    return None if document is None else measured(document, entry)


async def neighbours_of(catalog: Catalog, entry: CollectionEntry, chunk: MeasuredChunk) -> list[MeasuredChunk]:
    """Return the neighbours of a chunk, in order. Errors as `chunks_in_order`."""
    below = {**chunks_of(entry), "min": {"$lt": raw_document(chunk.range.min)}}
    above = {**chunks_of(entry), "min": raw_document(chunk.range.max)}
    found = [
        await catalog.find_first("chunks", below, sort={"min": -1}),
        await catalog.find_first("chunks", above, sort={"min": 1}),
    ]
    return [measured(document, entry) for document in found if document is not None]


def chunks_of(entry: CollectionEntry) -> dict[str, Any]:
    """Return the query for all chunks of a collection."""
    return {"uuid": Binary.from_uuid(entry.uuid)}


def measured(document: Mapping[str, Any], entry: CollectionEntry) -> MeasuredChunk:
    """Read a chunk from its document."""
    low, high = (encode_document(required(document, name, Mapping)) for name in ("min", "max"))
    return MeasuredChunk(
        ChunkRange.of(entry.key, low, high), required(document, "shard", str), document.get(SIZE_FIELD)
    )


DEFRAGMENTATION_FIELDS: Final = ("defragmentCollection", "defragmentationPhase")
"""The fields of a collection's entry; both are absent except during a defragmentation."""

_NOT_BEGUN: Final = "none"


async def defragmentation_details(term: Term, entry: CollectionEntry, chunk_bytes_max: int) -> dict[str, Any]:
    """Build the ``details`` of ``balancerCollectionStatus`` for a collection in defragmentation."""
    details: dict[str, Any] = {"currentPhase": entry.defragmentation_phase or _NOT_BEGUN}
    remaining = {
        Phase.MERGE_AND_MEASURE.value: {"$exists": False},
        Phase.MOVE_AND_MERGE.value: {"$lt": small_bytes(chunk_bytes_max)},
    }.get(entry.defragmentation_phase or "")
    if remaining is not None:
        number = await term.catalog.count("chunks", {**chunks_of(entry), SIZE_FIELD: remaining})
        details["progress"] = {"remainingChunksToProcess": int(number)}
    return details


async def set_phase(term: Term, entry: CollectionEntry, phase: Phase) -> None:
    """Record the start of a phase, unless the defragmentation was turned off. Errors as `Catalog.update_many`."""
    wanted = {**_incarnation(entry), "defragmentCollection": True}
    await term.catalog.update_many("collections", wanted, {"$set": {"defragmentationPhase": phase.value}})


async def forget(term: Term, entry: CollectionEntry) -> None:
    """Remove the recorded sizes and the phase after the end. Errors as `Catalog.update_many`."""
    sized = {**chunks_of(entry), SIZE_FIELD: {"$exists": True}}
    await term.catalog.update_many("chunks", sized, {"$unset": {SIZE_FIELD: ""}})
    await term.catalog.update_many(
        "collections", _incarnation(entry), {"$unset": dict.fromkeys(DEFRAGMENTATION_FIELDS, "")}
    )


def _incarnation(entry: CollectionEntry) -> dict[str, Any]:
    """Return the query for the entry, which does not match a later collection of the same name."""
    return {"_id": str(entry.namespace), **chunks_of(entry)}


OFF_SECONDS: Final = 10.0
"""Interval between checks whether the balancer is on again; starting it also triggers one."""


class TurnedOffError(Exception):
    """End of the defragmentation: it was turned off, or the collection was dropped."""


class ReplacedError(Exception):
    """Replacement of the collection by another one of the same name, which is defragmented from the beginning."""


class PausedError(Exception):
    """Stop of the balancer, or end of its window, since the step was chosen."""


@asynccontextmanager
async def step(term: Term) -> AsyncIterator[None]:
    """Run a step in the block. ``balancerStop`` waits for its end and prevents later ones.

    Raises:
        PausedError: the balancer is off.
    """
    with term.balancer_rounds.step():
        configuration = await Configuration().reread(term.catalog)
        if not configuration.is_valid or not configuration.balancer.may_balance(datetime.now()):
            raise PausedError
        yield


@dataclass(frozen=True, slots=True)
class Situation:
    """The cluster as one step reads it."""

    entry: CollectionEntry
    configuration: Configuration
    shards: Mapping[str, ShardEntry]
    zones: ZoneMap

    @property
    def chunk_bytes_max(self) -> int:
        """The chunk size of the collection."""
        return chunk_bytes_max(self.entry, self.configuration)

    @property
    def threshold(self) -> int:
        """The size below which a chunk is small."""
        return small_bytes(self.chunk_bytes_max)

    def may_receive(self, shard_id: str, zone: str) -> bool:
        """Whether a shard may receive chunks of a zone, or of `NO_ZONE`."""
        shard = self.shards.get(shard_id)
        return shard is not None and not shard.is_draining and (zone == NO_ZONE or zone in shard.tags)


async def wait_situation(term: Term, namespace: str) -> Situation:
    """Wait until the balancer is on and the collection may migrate; returns the situation then.

    Raises:
        TurnedOffError: there is nothing left to do.
    """
    catalog = term.catalog
    while True:
        document = await catalog.find_by_id("collections", namespace)
        if document is None:
            raise TurnedOffError
        entry = CollectionEntry.from_document(document)
        if not entry.is_defragmented:
            await forget(term, entry)
            raise TurnedOffError
        configuration = await Configuration().reread(catalog)
        if configuration.is_valid and configuration.balancer.may_balance(datetime.now()) and entry.may_migrate:
            return await read_situation(term, entry, configuration)
        await term.balancer_rounds.wait_changed(OFF_SECONDS)


async def read_situation(term: Term, entry: CollectionEntry, configuration: Configuration) -> Situation:
    """Read the present situation of a collection, whether or not a step is allowed.

    Raises a CommandError if the zones do not fit the shard key.
    """
    catalog = term.catalog
    tags = [TagEntry.from_document(each) for each in await catalog.find("tags", {"ns": str(entry.namespace)})]
    zones = ZoneMap(entry.key, [tag.zone_range(entry.key) for tag in tags])
    return Situation(entry, configuration, {shard.id: shard for shard in await catalog.shards()}, zones)


def decide_about_small(
    situation: Situation, chunk: MeasuredChunk, neighbours: Sequence[MeasuredChunk]
) -> Union | Skipped:
    """Decide about a small chunk: unite it with a neighbour, or skip it for a reason."""
    zones, namespace = situation.zones, situation.entry.namespace
    if chunk.shard not in situation.shards:
        return stays(namespace, chunk, zones, Rule.MOVE_AND_MERGE, UNKNOWN_SHARD)
    union = choose_union(chunk, neighbours, zones, situation.may_receive, situation.threshold)
    return union or stays(namespace, chunk, zones, Rule.MOVE_AND_MERGE, why_alone(chunk, neighbours, zones))
