"""How much data of each collection each shard has, as the shards report."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

import trio
from bson.binary import Binary

from shardwright.configd.shards.shard_clients import ShardClients
from shardwright.sharding.catalog.collection_entry import CollectionEntry
from shardwright.sharding.catalog.shard_entry import ShardEntry
from shardwright.wire.errors import CommandError
from shardwright.wire.logger import get_logger

logger = get_logger("configd.balancer")

COLLECTIONS_PER_REQUEST: Final = 20
SECONDS_MAX: Final = 10.0
"""A shard that has not reported by then takes no part in the round."""


@dataclass(slots=True)
class Statistics:
    """The reports of all shards.

    Attributes:
        sizes: bytes by shard, by namespace.
        silent: the shards that have not reported, each with the reason.
    """

    sizes: dict[str, dict[str, int]] = field(default_factory=dict)
    silent: dict[str, str] = field(default_factory=dict)


async def ask_shards(
    clients: ShardClients, shards: Sequence[ShardEntry], collections: Sequence[CollectionEntry]
) -> Statistics:
    """Ask all shards at the same time; never raises because one does not answer."""
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
