"""The clone of one collection of a database that moves, when its cursor ends early."""

import pytest
import trio
import trio.testing

from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.shardd.local_mongod.local_collections import describe
from shardwright.shardd.migration.donor.database_source import CollectionSource
from shardwright.sharding.namespace import Namespace
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import EMPTY_DOCUMENT
from tests.shardd.lone_mongod import LoneMongod

DOCUMENTS = 5_000
PADDING = "x" * 5_000


async def _created(mongod: LocalMongod, nursery: trio.Nursery, db: str) -> CollectionSource:
    """The source of a new collection that has more documents than two batches."""
    namespace = Namespace(db, "c")
    for begin in range(0, DOCUMENTS, 1_000):
        documents = [{"_id": n, "padding": PADDING} for n in range(begin, begin + 1_000)]
        await mongod.write(db, {"insert": "c", "documents": documents})
    await mongod.command(db, {"insert": "c", "documents": [{}], "writeConcern": {"w": "majority"}})
    found = await describe(mongod, namespace)
    assert found is not None
    assert found.uuid is not None
    return CollectionSource(mongod, namespace, found.uuid, nursery)


async def _idle_cursors(mongod: LocalMongod, db: str) -> int:
    pipeline = [{"$currentOp": {"idleCursors": True, "localOps": True}}, {"$match": {"ns": f"{db}.c"}}]
    idle = [*pipeline, {"$match": {"type": "idleCursor"}}]
    reply = await mongod.command("admin", {"aggregate": 1, "pipeline": idle, "cursor": {}})
    return len(reply["cursor"]["firstBatch"])


async def _wait_idle(mongod: LocalMongod, db: str) -> None:
    """Return when the clone has an open cursor and has read as far ahead as it does."""
    await trio.testing.wait_all_tasks_blocked(0.2)
    while await _idle_cursors(mongod, db) != 1:
        await trio.testing.wait_all_tasks_blocked(0.2)


async def _error_of_clone(source: CollectionSource) -> CommandError:
    for number in range(1, DOCUMENTS):
        try:
            batch = await source.clone_batch(number)
        except CommandError as error:
            return error
        assert len(batch) > len(EMPTY_DOCUMENT), "the clone ended without an error"
    raise AssertionError("the clone does not end")


def test_a_killed_cursor_does_not_look_like_a_dropped_collection(lone: LoneMongod, db: str) -> None:
    async def test(mongod: LocalMongod) -> None:
        async with trio.open_nursery() as nursery:
            source = await _created(mongod, nursery, db)
            await source.clone_batch(0)
            await _wait_idle(mongod, db)
            await mongod.command("admin", {"killAllSessions": []})
            assert (await _error_of_clone(source)).code == ErrorCode.CursorNotFound
            nursery.cancel_scope.cancel()

    lone.run(test)


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_dropped_collection_is_reported_as_such(lone: LoneMongod, db: str, is_replaced: bool) -> None:
    async def test(mongod: LocalMongod) -> None:
        async with trio.open_nursery() as nursery:
            source = await _created(mongod, nursery, db)
            await source.clone_batch(0)
            await mongod.command(db, {"drop": "c"})
            if is_replaced:
                await mongod.command(db, {"create": "c"})
            assert (await _error_of_clone(source)).code == ErrorCode.NamespaceNotFound
            changes, unread = await source.changes({b"\x10_id\0" + bytes(4): b""})
            assert (changes.deleted, changes.reload, unread) == ([], [], ())
            nursery.cancel_scope.cancel()

    lone.run(test)


def test_the_cursor_is_opened_when_it_is_needed(lone: LoneMongod, db: str) -> None:
    """A database may have thousands of collections, and the recipient clones one at a time."""

    async def test(mongod: LocalMongod) -> None:
        async with trio.open_nursery() as nursery:
            source = await _created(mongod, nursery, db)
            assert await _idle_cursors(mongod, db) == 0
            await source.clone_batch(0)
            await _wait_idle(mongod, db)
            nursery.cancel_scope.cancel()

    lone.run(test)
