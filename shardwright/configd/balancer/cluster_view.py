"""The cluster for the balancer's policy: catalog entries, settings, data sizes, and answers to queries of chunks.

The settings (`Configuration`, from ``config.settings``) are read again for each round, and the shards report the data
sizes. `ChunkAnswers` answers the policy's queries by look-ups in the indexes of ``config.chunks``, so no round reads
all chunks.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Final

import trio
from bson.binary import Binary

from shardwright.configd.catalog.catalog import Catalog
from shardwright.configd.term.shard_clients import ShardClients
from shardwright.configd.term.term import Term
from shardwright.sharding.balancing.cluster_state import (
    Answer,
    Asking,
    Candidate,
    ChunkCounts,
    ChunksAcross,
    ClusterState,
    CollectionState,
    FirstChunk,
    ForceJumbo,
    Policy,
    Question,
    Result,
    ShardState,
    ZoneMap,
)
from shardwright.sharding.catalog.documents import CollectionEntry, ShardEntry, TagEntry
from shardwright.sharding.catalog.settings import BALANCER_ID, CHUNK_SIZE_ID, BalancerSettings, ChunkSizeSettings
from shardwright.sharding.chunks import ChunkRange
from shardwright.sharding.document_fields import required
from shardwright.sharding.logical_sessions import NAMESPACE as SESSIONS
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.logger import get_logger
from shardwright.wire.rawbson import encode_document, raw_document

logger = get_logger("configd.balancer")

UNTHROTTLED: Final = {"w": 1, "wtimeout": 0}
"""The recipient's write concern without ``secondaryThrottle``, in the format of the donor's command."""

COLLECTIONS_PER_REQUEST: Final = 20

SECONDS_MAX: Final = 10.0
"""Time limit for a shard's report; a slower shard is left out of the round."""

_BY_SHARD: Final = {"uuid": 1, "shard": 1, "min": 1}

_RANGES_PER_QUERY: Final = 100

_BOUNDS_PER_QUERY: Final = 1000

_RANGES_PER_COUNT: Final = 4
"""Maximum number of ranges that are counted one by one; for more, one query counts the chunks of all shards."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """The documents ``balancer`` and ``chunksize`` of the settings.

    If one of them is invalid, no round may begin, and the settings keep their last values, as in MongoDB.
    """

    balancer: BalancerSettings = field(default_factory=BalancerSettings)
    chunk_size: ChunkSizeSettings = field(default_factory=ChunkSizeSettings)
    is_valid: bool = True

    async def reread(self, catalog: Catalog) -> "Configuration":
        """Read the present settings; errors as `Catalog.find`."""
        documents = await catalog.find("settings", {"_id": {"$in": [BALANCER_ID, CHUNK_SIZE_ID]}})
        found = {document["_id"]: document for document in documents}
        try:
            return Configuration(
                BalancerSettings.from_document(found.get(BALANCER_ID)),
                ChunkSizeSettings.from_document(found.get(CHUNK_SIZE_ID)),
            )
        except CommandError as error:
            logger.warning("The balancer's settings are not valid; it pauses until they are", error=str(error))
            return replace(self, is_valid=False)

    def move_options(self) -> dict[str, Any]:
        """Return the fields of a request to a donor that depend on the settings.

        ``_secondaryThrottle`` is true, or the write concern for the recipient's writes.
        """
        throttle = self.balancer.secondary_throttle
        return {
            "waitForDelete": self.balancer.wait_for_delete,
            "secondaryThrottle": bool(throttle),
            "writeConcern": dict(throttle) if throttle and not isinstance(throttle, bool) else UNTHROTTLED,
        }


@dataclass(slots=True)
class Statistics:
    """The reports of all shards.

    Attributes:
        sizes: bytes by namespace and shard.
        silent: the shards that have not reported, with the reasons.
    """

    sizes: dict[str, dict[str, int]] = field(default_factory=dict)
    silent: dict[str, str] = field(default_factory=dict)


async def ask_shards(
    clients: ShardClients, shards: Sequence[ShardEntry], collections: Sequence[CollectionEntry]
) -> Statistics:
    """Request the reports of all shards concurrently; errors of shards are recorded, not raised."""
    statistics = Statistics()

    async def ask(shard: ShardEntry) -> None:
        try:
            with trio.fail_after(SECONDS_MAX):
                await _ask(clients, shard, collections, statistics)
        except (CommandError, trio.TooSlowError) as error:
            reason = str(error) or f"no report within {SECONDS_MAX:.0f} s"
            logger.warning("A shard takes no part in a round", shard=shard.id, error=reason)
            statistics.silent[shard.id] = reason

    async with trio.open_nursery() as nursery:
        for shard in shards:
            nursery.start_soon(ask, shard)
    return statistics


async def _ask(
    clients: ShardClients, shard: ShardEntry, collections: Sequence[CollectionEntry], statistics: Statistics
) -> None:
    for batch in _batches(collections):
        request = {
            "_shardsvrGetStatsForBalancing": 1,
            "collections": [{"ns": str(each.namespace), "UUID": Binary.from_uuid(each.uuid)} for each in batch],
            "scaleFactor": 1,
        }
        for report in _reports(await clients.command(shard, "admin", request)):
            statistics.sizes.setdefault(report["namespace"], {})[shard.id] = int(report["collSize"])


def _reports(reply: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return list(reply.get("stats", ()))


def _batches(collections: Sequence[CollectionEntry]) -> Iterator[list[CollectionEntry]]:
    rest = iter(collections)
    while batch := list(islice(rest, COLLECTIONS_PER_REQUEST)):
        yield batch


SESSIONS_CHUNK_BYTES = 209_715
"""The chunk size of ``config.system.sessions``, 0.2 MB."""


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The subject of one round or one report.

    Attributes:
        cluster: shards and settings, for the policy.
        collections: the collections, for the policy.
        silent: shards that are left out because they did not report, with the reasons.
    """

    shards: Mapping[str, ShardEntry]
    entries: Mapping[str, CollectionEntry]
    cluster: ClusterState
    collections: tuple[CollectionState, ...]
    silent: Mapping[str, str]


async def read_view(term: Term, configuration: Configuration, only: str | None = None) -> ClusterView:
    """Read the catalog, and request the sizes of the collections from the shards.

    ``only`` restricts this to one namespace. Errors as `Catalog.find`, and a CommandError if the entry of a shard or of
    a zone's range is malformed.
    """
    chosen = {} if only is None else {"_id": only}
    shards = await term.catalog.shards()
    entries = _parse_entries(await term.catalog.find("collections", chosen))
    tags: dict[str, list[TagEntry]] = {}
    for tag in map(TagEntry.from_document, await term.catalog.find("tags", {} if only is None else {"ns": only})):
        tags.setdefault(str(tag.namespace), []).append(tag)
    # Without a second shard there is nothing to compare and nothing to move.
    asked = entries if len(shards) > 1 else []
    statistics = await ask_shards(term.shards, shards, asked)
    return ClusterView(
        {shard.id: shard for shard in shards},
        {str(entry.namespace): entry for entry in entries},
        _cluster(shards, statistics, configuration),
        tuple(_state(entry, tags.get(str(entry.namespace), ()), statistics, configuration) for entry in entries),
        statistics.silent,
    )


def _parse_entries(documents: Iterable[Mapping[str, object]]) -> list[CollectionEntry]:
    entries = []
    for document in documents:
        try:
            entries.append(CollectionEntry.from_document(document))
        except CommandError as error:
            logger.warning(
                "A collection is not balanced: its entry is malformed", namespace=str(document["_id"]), error=str(error)
            )
    return entries


def _cluster(shards: Sequence[ShardEntry], statistics: Statistics, configuration: Configuration) -> ClusterState:
    settings = configuration.balancer
    return ClusterState(
        tuple(
            ShardState(each.id, frozenset(each.tags), each.is_draining, each.id not in statistics.silent)
            for each in shards
        ),
        Policy(settings.policy),
        ForceJumbo.BALANCER if settings.attempt_to_balance_jumbo_chunks else ForceJumbo.NO,
    )


def _state(
    entry: CollectionEntry, tags: Iterable[TagEntry], statistics: Statistics, configuration: Configuration
) -> CollectionState:
    namespace = str(entry.namespace)
    why_skipped = _why_skipped(entry)
    try:
        # Sessions may be on every shard, whatever the zones.
        zones = ZoneMap(entry.key, () if namespace == SESSIONS else [tag.zone_range(entry.key) for tag in tags])
    except CommandError as error:
        zones, why_skipped = ZoneMap(entry.key), f"its zones do not fit its shard key: {error}"
    return CollectionState(
        entry.namespace,
        zones,
        statistics.sizes.get(namespace, {}),
        chunk_bytes_max(entry, configuration),
        why_skipped,
    )


def _why_skipped(entry: CollectionEntry) -> str:
    if entry.is_defragmented:
        return "its chunks are being defragmented"
    if entry.no_balance:
        return "balancing of the collection is disabled (noBalance)"
    if not entry.permit_migrations:
        return "migrations of the collection are not permitted (permitMigrations)"
    if not entry.allow_migrations:
        return "a change of the collection is in progress (allowMigrations)"
    return ""


def chunk_bytes_max(entry: CollectionEntry, configuration: Configuration) -> int:
    """Return the chunk size of a collection: its own, the fixed size for sessions, or the cluster's."""
    if entry.max_chunk_size_bytes is not None:
        return entry.max_chunk_size_bytes
    if str(entry.namespace) == SESSIONS:
        return SESSIONS_CHUNK_BYTES
    return configuration.chunk_size.value_bytes


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
        for ranges in _range_batches(question.within):
            query = {"$and": [_within(owned, ranges), *wanted]}
            document = await self._catalog.find_first("chunks", query, sort={"min": 1})
            if document is not None:
                return Answer((_candidate(document, collection),))
        return Answer()

    async def _counts(self, question: ChunkCounts, collection: CollectionEntry) -> Answer:
        if question.within is None or len(question.within) <= _RANGES_PER_COUNT:
            return Answer(counts=await self._counts_by_shard(question, collection))
        counts: dict[str, int] = {}
        for ranges in _range_batches(question.within):
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


def _range_batches(ranges: tuple[ChunkRange, ...] | None) -> Iterator[tuple[ChunkRange, ...] | None]:
    if ranges is None:
        yield None
        return
    rest = iter(ranges)
    while batch := tuple(islice(rest, _RANGES_PER_QUERY)):
        yield batch


def _candidate(document: Mapping[str, Any], collection: CollectionEntry) -> Candidate:
    low, high = (encode_document(required(document, name, Mapping)) for name in ("min", "max"))
    return Candidate(ChunkRange.of(collection.key, low, high), required(document, "shard", str))
