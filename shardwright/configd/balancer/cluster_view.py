"""The cluster for the policy: catalog entries, and the data sizes that the shards report."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

import trio
from bson.binary import Binary

from shardwright.configd.balancer.configuration import Configuration
from shardwright.configd.shards.shard_clients import ShardClients
from shardwright.configd.term.term import Term
from shardwright.sharding.balancing.cluster_state import ClusterState, CollectionState, ForceJumbo, Policy, ShardState
from shardwright.sharding.balancing.zones import ZoneMap
from shardwright.sharding.catalog.collection_entry import CollectionEntry
from shardwright.sharding.catalog.shard_entry import ShardEntry
from shardwright.sharding.catalog.tag_entry import TagEntry
from shardwright.sharding.session_cache import NAMESPACE as SESSIONS
from shardwright.wire.errors import CommandError
from shardwright.wire.logger import get_logger

logger = get_logger("configd.balancer")

COLLECTIONS_PER_REQUEST: Final = 20
SECONDS_MAX: Final = 10.0
"""Time limit for a shard's report; a slower shard is left out of the round."""


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
