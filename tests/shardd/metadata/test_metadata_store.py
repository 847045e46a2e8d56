"""What a shard's mongod persists of the catalog, and when it can be read."""

from uuid import UUID

import trio
from bson.timestamp import Timestamp

from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.shardd.metadata.metadata_store import MetadataStore
from shardwright.sharding.catalog.database_entry import DatabaseEntry
from shardwright.sharding.versions import DatabaseVersion
from tests.shardd.lone_mongod import LoneMongod


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
