"""Creating collections with given UUIDs beside open transactions."""

from typing import Any, Final
from uuid import uuid4

import trio
from bson.binary import Binary
from bson.int64 import Int64

from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.shardd.local_mongod.local_collections import create_with_uuid, describe
from shardwright.sharding.namespace import Namespace
from tests.shardd.lone_mongod import LoneMongod

READS: Final = 20
READ_MS_MAX: Final = 5_000


def test_others_do_not_wait_for_a_creation_that_waits_for_a_transaction(lone: LoneMongod, db: str) -> None:
    created = Namespace(db, "created")
    uuid = uuid4()
    session: dict[str, Any] = {"lsid": {"id": Binary.from_uuid(uuid4())}, "txnNumber": Int64(1), "autocommit": False}

    async def test(mongod: LocalMongod) -> None:
        await mongod.write(db, {"insert": "c", "documents": [{"_id": 1}]})
        first = {"insert": "c", "documents": [{"_id": 2}], "startTransaction": True}
        await mongod.command(db, {**first, **session})
        async with trio.open_nursery() as nursery:
            nursery.start_soon(create_with_uuid, mongod, created, uuid, {}, None)
            for _ in range(READS):
                await mongod.command(db, {"find": "c", "maxTimeMS": READ_MS_MAX})
                await trio.sleep(0.02)
            assert await describe(mongod, created) is None
            await mongod.command("admin", {"commitTransaction": 1, **session})
        found = await describe(mongod, created)
        assert found is not None
        assert found.uuid == uuid

    lone.run(test)
