"""What each step of a defragmentation begins with: collection, settings, shards and zones as they are now."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from shardwright.configd.balancer.cluster_view import chunk_bytes_max
from shardwright.configd.balancer.configuration import Configuration
from shardwright.configd.balancer.defragmentation.progress import forget
from shardwright.configd.primary.primary import Primary
from shardwright.sharding.balancing.defragmentation import small_bytes
from shardwright.sharding.balancing.zones import NO_ZONE, ZoneMap
from shardwright.sharding.catalog.collection_entry import CollectionEntry
from shardwright.sharding.catalog.shard_entry import ShardEntry
from shardwright.sharding.catalog.tag_entry import TagEntry

OFF_SECONDS: Final = 10.0
"""How often to look whether the balancer is on again, apart from whenever it is started."""


class TurnedOffError(Exception):
    """The collection is not to be defragmented any more, or has been dropped."""


class ReplacedError(Exception):
    """Another collection has the name now, and is to be defragmented from the beginning."""


class PausedError(Exception):
    """The balancer has been stopped, or its window has ended, since the step was chosen."""


@asynccontextmanager
async def step(primary: Primary) -> AsyncIterator[None]:
    """Do something for which ``balancerStop`` waits, and which does not begin after that.

    Raises:
        PausedError: the balancer is off.
        CommandError: the settings could not be read; and whatever the block raises.
        BackendError: likewise.
    """
    with primary.balancer_rounds.step():
        configuration = await Configuration().reread(primary.catalog)
        if not configuration.is_valid or not configuration.balancer.may_balance(datetime.now()):
            raise PausedError
        yield


@dataclass(frozen=True, slots=True)
class Situation:
    """The cluster as one step sees it."""

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
        """The size from which on a chunk is not small."""
        return small_bytes(self.chunk_bytes_max)

    def may_receive(self, shard_id: str, zone: str) -> bool:
        """Whether a shard may receive chunks of a zone, or of `NO_ZONE`."""
        shard = self.shards.get(shard_id)
        return shard is not None and not shard.is_draining and (zone == NO_ZONE or zone in shard.tags)


async def wait_situation(primary: Primary, namespace: str) -> Situation:
    """Wait until the balancer is on and the collection may migrate; returns the situation then.

    Raises:
        TurnedOffError: there is nothing left to do.
        CommandError: the catalog could not be read.
        BackendError: the mongod does not answer.
    """
    catalog = primary.catalog
    while True:
        document = await catalog.find_by_id("collections", namespace)
        if document is None:
            raise TurnedOffError
        entry = CollectionEntry.from_document(document)
        if not entry.is_defragmented:
            await forget(primary, entry)
            raise TurnedOffError
        configuration = await Configuration().reread(catalog)
        if configuration.is_valid and configuration.balancer.may_balance(datetime.now()) and entry.may_migrate:
            return await read_situation(primary, entry, configuration)
        await primary.balancer_rounds.wait_changed(OFF_SECONDS)


async def read_situation(primary: Primary, entry: CollectionEntry, configuration: Configuration) -> Situation:
    """The situation of a collection now, whether or not a step may be made.

    Raises:
        CommandError: the catalog could not be read, or the zones do not fit the shard key.
        BackendError: the mongod does not answer.
    """
    catalog = primary.catalog
    tags = [TagEntry.from_document(each) for each in await catalog.find("tags", {"ns": str(entry.namespace)})]
    zones = ZoneMap(entry.key, [tag.zone_range(entry.key) for tag in tags])
    return Situation(entry, configuration, {shard.id: shard for shard in await catalog.shards()}, zones)
