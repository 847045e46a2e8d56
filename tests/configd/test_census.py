"""Counts of chunks for the metrics."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, cast
from uuid import UUID

import pytest
import trio
from bson.binary import Binary
from bson.timestamp import Timestamp
from trio.testing import MockClock

from shardwright.configd.catalog.catalog import UNCHANGED_SECONDS_MAX, ChunkCensus
from shardwright.sharding.catalog.documents import ShardEntry

if TYPE_CHECKING:
    from shardwright.configd.catalog.catalog import Catalog

A: Final = Binary.from_uuid(UUID(int=1))
B: Final = Binary.from_uuid(UUID(int=2))


class FakeCatalog:
    """A catalog in memory that notes which collections are counted, and takes a tenth of a second for it."""

    def __init__(self) -> None:
        self.versions = {A: Timestamp(1, 1), B: Timestamp(2, 1)}
        self.groups = {
            A: [{"_id": "s0", "chunks": 3, "jumbo": 1}, {"_id": "s1", "chunks": 1, "jumbo": 0}],
            B: [{"_id": "s0", "chunks": 2, "jumbo": 0}],
        }
        self.counted: list[Binary] = []

    async def shards(self) -> list[ShardEntry]:
        return [ShardEntry("s0", "s0/a:1"), ShardEntry("s1", "s1/a:2", is_draining=True), ShardEntry("s2", "s2/a:3")]

    async def find(self, collection: str, query: Mapping[str, Any]) -> list[dict[str, Any]]:
        assert (collection, query) == ("collections", {})
        return [{"uuid": uuid} for uuid in self.versions]

    async def find_first(self, collection: str, query: Mapping[str, Any], **_: object) -> dict[str, Any]:
        return {"lastmod": self.versions[query["uuid"]]}

    async def aggregate(
        self, collection: str, pipeline: Sequence[Mapping[str, Any]], *, hint: Mapping[str, int]
    ) -> list[dict[str, Any]]:
        uuid = pipeline[0]["$match"]["uuid"]
        self.counted.append(uuid)
        await trio.sleep(0.1)
        return self.groups[uuid]


def look(census: ChunkCensus, catalog: FakeCatalog) -> float:
    """Look once; returns how long it has taken."""

    async def main() -> float:
        started = trio.current_time()
        await census.look(cast("Catalog", catalog))
        return trio.current_time() - started

    return trio.run(main, clock=MockClock(autojump_threshold=0))


def test_chunks_are_added_up_by_shard() -> None:
    census = ChunkCensus()
    assert census.chunks() == {}
    seconds = look(census, FakeCatalog())
    assert census.chunks() == {"s0": 5, "s1": 1, "s2": 0}
    assert census.jumbo() == {"s0": 1, "s1": 0, "s2": 0}
    assert census.draining == {"s0": False, "s1": True, "s2": False}
    assert census.collections == 2
    assert seconds == pytest.approx(2 * 0.1 * 101, rel=0.01)  # it pauses for a hundred times as long as it counts


def test_only_changed_collections_are_counted_again() -> None:
    census, catalog = ChunkCensus(), FakeCatalog()
    look(census, catalog)
    catalog.counted.clear()
    look(census, catalog)
    assert catalog.counted == []
    catalog.versions[B] = Timestamp(3, 0)
    look(census, catalog)
    assert catalog.counted == [B]


def test_dropped_collections_do_not_count() -> None:
    census, catalog = ChunkCensus(), FakeCatalog()
    look(census, catalog)
    del catalog.versions[A]
    look(census, catalog)
    assert census.chunks() == {"s0": 2, "s1": 0, "s2": 0}


def test_a_jumbo_flag_is_noticed_after_a_while() -> None:
    census, catalog = ChunkCensus(), FakeCatalog()

    async def main() -> None:
        await census.look(cast("Catalog", catalog))
        catalog.counted.clear()
        await trio.sleep(UNCHANGED_SECONDS_MAX)
        await census.look(cast("Catalog", catalog))

    trio.run(main, clock=MockClock(autojump_threshold=0))
    assert catalog.counted == [A, B]
