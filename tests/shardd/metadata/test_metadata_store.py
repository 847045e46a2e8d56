"""Catalog data persisted on a shard's mongod, and when it can be read."""

from itertools import pairwise
from typing import Any, Final
from uuid import UUID

import trio
from bson.max_key import MaxKey
from bson.min_key import MinKey
from bson.timestamp import Timestamp

from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.shardd.metadata.metadata_store import MetadataStore
from shardwright.sharding.catalog.documents import DatabaseEntry
from shardwright.sharding.routing_table import RoutingTable
from shardwright.sharding.versions import DatabaseVersion
from tests.shardd.lone_mongod import LoneMongod
from tests.sharding.chunk_worlds import chunk, table_of

BOUNDS: Final[list[list[int]]] = [
    [10, 20, 30, 40],  # at first
    [10, 12, 14, 20, 30, 40, 50],  # split in two places, with unchanged chunks between them
    [20, 30, 50],  # merged over several former chunks
    [5, 20, 25, 27, 30, 50],
]
"""The bounds between the chunks of a collection, from version to version."""


def test_a_read_after_a_time_that_the_mongod_has_not_heard_of(lone: LoneMongod) -> None:
    """As on a secondary, which reads after a time of its primary before it has the primary's oplog."""

    async def test(mongod: LocalMongod) -> None:
        present: Timestamp = (await mongod.command("admin", {"ping": 1}))["$clusterTime"]["clusterTime"]
        ahead = Timestamp(present.time + 60, 1)
        store, loaded = MetadataStore(mongod), list[DatabaseEntry | None]()
        await store.save_database("early", ENTRY)
        store.forget()

        async def load() -> None:
            loaded.append(await store.load_database("early", ahead))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(load)
            number = 0
            while not loaded:
                # The read has advanced the clock, so one of these writes has that time, or one of the mongod's own.
                number += 1
                version = DatabaseVersion(UUID(int=2), Timestamp(1, 1), number)
                await store.save_database("another", DatabaseEntry("another", "sh0", version))
        assert loaded == [ENTRY]

    lone.run(test)


ENTRY = DatabaseEntry("early", "sh0", DatabaseVersion(UUID(int=1), Timestamp(1, 1), 1))


def test_only_changed_chunks_are_written(lone: LoneMongod) -> None:
    """Afterwards the newest table is persisted, and unchanged documents stay as they are."""

    async def persisted(mongod: LocalMongod) -> list[dict[str, Any]]:
        found = await mongod.command("config", {"find": "cache.chunks.d.c", "sort": {"_id": 1}})
        return [dict(each) for each in found["cursor"]["firstBatch"]]

    async def test(mongod: LocalMongod) -> None:
        store, known = MetadataStore(mongod), dict[tuple[Any, Any], Any]()
        for major, inner in enumerate(BOUNDS, start=1):
            chunks = []
            for minor, (low, high) in enumerate(pairwise([MinKey(), *inner, MaxKey()])):
                known.setdefault((low, high), chunk(low, high, "sh0", major, minor))
                chunks.append(known[low, high])
            await store.save_collection("d.c", table_of(chunks))
            found = await persisted(mongod)
            assert [each["_id"]["x"] for each in found] == [MinKey(), *inner]
            assert [each["max"]["x"] for each in found] == [*inner, MaxKey()]
            assert [each["lastmod"] for each in found] == [
                Timestamp(each.version.major, each.version.minor) for each in chunks
            ]
        store.forget()
        loaded = await store.load_collection("d.c")
        assert loaded is not None
        assert loaded.collection_version == table_of(chunks).collection_version

    lone.run(test)


def test_what_a_former_primary_has_persisted_is_not_written_again(lone: LoneMongod) -> None:
    """Otherwise all secondaries would refresh after each election."""

    def in_chunks(major: int) -> RoutingTable:
        low, high = chunk(MinKey(), 10, "sh0", major, 0), chunk(10, MaxKey(), "sh0", major, 1)
        return table_of([low, high])

    async def test(mongod: LocalMongod) -> None:
        async def writes() -> list[tuple[str, Any]]:
            query = {"op": {"$ne": "n"}, "ns": {"$regex": r"^config\.(cache\.|\$cmd)"}}
            found = await mongod.command("local", {"find": "oplog.rs", "filter": query, "batchSize": 10_000})
            return [(each["ns"], each["o"]) for each in found["cursor"]["firstBatch"]]

        store = MetadataStore(mongod)
        await store.save_collection("d.c", None)  # another test's
        await store.save_collection("d.c", in_chunks(1))
        await store.save_collection("d.unsharded", None)
        await store.save_database("early", ENTRY)
        store.forget()
        before = await writes()
        await store.save_collection("d.c", in_chunks(1))
        await store.save_collection("d.unsharded", None)
        await store.save_database("early", ENTRY)
        assert await writes() == before
        await store.save_collection("d.c", in_chunks(2))
        loaded = await store.load_collection("d.c")
        assert loaded is not None
        assert loaded.collection_version == in_chunks(2).collection_version

    lone.run(test)


def test_what_a_former_primary_has_written_in_part_is_written_again(lone: LoneMongod) -> None:
    async def test(mongod: LocalMongod) -> None:
        table = table_of([chunk(MinKey(), MaxKey(), "sh0", 1, 0)])
        store = MetadataStore(mongod)
        await store.save_collection("d.c", None)  # another test's
        await store.save_collection("d.c", table)
        begun = {"q": {"_id": "d.c"}, "u": {"$set": {"refreshing": True}}}
        await mongod.write("config", {"update": "cache.collections", "updates": [begun]})
        store.forget()
        await store.save_collection("d.c", table)
        assert await store.load_collection("d.c") is not None

    lone.run(test)
