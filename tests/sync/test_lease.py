"""The lease: a process that is slow keeps it, and one that has lost it writes nothing."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, Final

import pytest
from bson.timestamp import Timestamp
from pymongo import InsertOne
from pymongo.errors import AutoReconnect, OperationFailure

from shardwright.sync import store as stores
from shardwright.sync.commands import run_command
from shardwright.sync.ends import NAMESPACE_NOT_FOUND, End, repeated
from shardwright.sync.store import SYNC, DocumentWrites, LeaseHeldError, LeaseLostError, Store
from tests.sync.running import Ends
from tests.sync.writers import DATABASE

ID = "a replication"
OWN = "shardwright"
NS = f"{DATABASE}.items"


@asynccontextmanager
async def opened(ends: Ends) -> AsyncIterator[Store]:
    """The checkpoints of a process of its own."""
    source, target = End("source", ends.uris[0]), End("target", ends.uris[1])
    try:
        yield Store(ID, source, target, source_writes=True)
    finally:
        await source.close()
        await target.close()


async def write(store: Store, number: int) -> None:
    """Write a document, as the owner of the lease."""
    key = (0x10, number.to_bytes(4, "little"))
    await store.fenced(SYNC, {"_id": ID}, {}, [DocumentWrites(NS, key, [InsertOne[Any]({"_id": number})])])


def test_a_slow_process_continues_with_its_lease(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its lease has expired before each write, and no other process has taken it."""
    monkeypatch.setattr(stores, "LEASE_SECONDS", 0.0)

    async def run() -> None:
        async with opened(ends) as store:
            await store.acquire()
            await write(store, 1)
            await write(store, 2)
            assert store.term == 1
            async with opened(ends) as other:
                with pytest.raises(LeaseHeldError):
                    await other.acquire()

    ends.target[DATABASE].create_collection("items")
    asyncio.run(run())
    assert ends.target[DATABASE].items.distinct("_id") == [1, 2]


def test_checkpoints_at_one_time_leave_both_sides_with_the_same(ends: Ends) -> None:
    """The end of the copy records one, and so does a timer; otherwise the next process would compare everything."""

    async def run() -> None:
        async with opened(ends) as store:
            await store.acquire()
            records = [store.record(Timestamp(each, 1), copied=True, counters={}, is_new=True) for each in range(1, 9)]
            await asyncio.gather(*records)
            agreed = await store.agreement()
            assert agreed.is_exact, agreed
            assert agreed.last == Timestamp(8, 1)

    asyncio.run(run())


@pytest.mark.parametrize("lease_seconds", [0.0, 10.0])
def test_a_process_that_has_lost_its_lease_writes_nothing(
    ends: Ends, monkeypatch: pytest.MonkeyPatch, lease_seconds: float
) -> None:
    """Whether it knows that its lease has expired or not."""
    monkeypatch.setattr(stores, "LEASE_SECONDS", lease_seconds)

    async def run() -> None:
        async with opened(ends) as store, opened(ends) as other:
            await store.acquire()
            ends.target[OWN]["sync.leases"].update_one({}, {"$set": {"until": datetime.fromtimestamp(0, UTC)}})
            await other.acquire()
            with pytest.raises(LeaseLostError):
                await write(store, 1)
            await write(other, 2)

    ends.target[DATABASE].create_collection("items")
    asyncio.run(run())
    assert ends.target[DATABASE].items.distinct("_id") == [2]


def test_a_process_that_has_lost_its_lease_plans_nothing(ends: Ends) -> None:
    """Such a process neither removes nor adds ranges, and changes no collection."""

    async def run() -> None:
        async with opened(ends) as store, opened(ends) as other:
            await store.acquire()
            ends.target[OWN]["sync.leases"].update_one({}, {"$set": {"until": datetime.fromtimestamp(0, UTC)}})
            await other.acquire()
            await other.add_ranges([{"ns": NS, "number": 0}])
            with pytest.raises(LeaseLostError):
                await store.replace_ranges([{"ns": NS, "number": 1}])
            await store.add_ranges([{"ns": NS, "number": 2}])
            assert [each["number"] for each in await other.ranges()] == [0]
            monkeypatch.setattr(store, "_valid_until", 0.0)
            with pytest.raises(LeaseLostError):
                await store.check_lease()

    with pytest.MonkeyPatch.context() as monkeypatch:
        asyncio.run(run())


def test_a_note_waits_for_a_locked_server(ends: Ends) -> None:
    """A mongod refuses ``appendOplogNote`` at once if it cannot take its global lock."""

    async def run() -> None:
        source = End("source", ends.uris[0])
        try:
            with pytest.raises(OperationFailure, match="Global lock is not available"):
                await source.command("admin", {"appendOplogNote": 1, "data": {}})
            noting = asyncio.create_task(source.advance())
            await asyncio.wait((noting,), timeout=0.5)
            assert not noting.done()
            ends.source.admin.command("fsyncUnlock")
            await noting
        finally:
            await source.close()

    ends.source.admin.command("fsync", lock=True)
    try:
        asyncio.run(run())
    finally:
        while ends.source.admin.command("currentOp").get("fsyncLock"):
            ends.source.admin.command("fsyncUnlock")


def test_a_cancellation_that_a_request_swallows_ends_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """As requests of pymongo do now and then, so that a committed replication did not end."""

    async def swallow(*_: object) -> None:
        """Swallow the first cancellation of a task alone, so that the test can end if it fails."""
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling() > 1:
                raise

    async def cancel(task: "asyncio.Task[Any]") -> None:
        await asyncio.sleep(0)
        task.cancel()
        async with asyncio.timeout(10):
            with pytest.raises(asyncio.CancelledError):
                await task

    async def run() -> None:
        await cancel(asyncio.create_task(Store.__new__(Store).keep_lease(dict)))
        await cancel(asyncio.create_task(repeated(swallow)))

    monkeypatch.setattr(Store, "_renew", swallow)
    asyncio.run(run())


def indexed(database: Any) -> None:  # noqa: ANN401 - a database
    """Replace a collection by another one of the same name, with an index and a document."""
    database.items.drop()
    database.items.create_index("n", name="n_1")
    database.items.insert_one({"_id": "later"})


UNSHARDED: Final[list[dict[str, Any]]] = [
    {"drop": "items"},
    {"renameCollection": NS, "to": f"{DATABASE}.other", "dropTarget": True},
    {"collMod": "items", "validator": {"n": {"$gt": 0}}},
    {"dropIndexes": "items", "index": "n_1"},
    {"createIndexes": "items", "indexes": [{"key": {"m": 1}, "name": "m_1"}]},
]
SHARDED: Final[list[dict[str, Any]]] = [
    {"shardCollection": NS, "key": {"n": 1}},
    {"reshardCollection": NS, "key": {"n": 1}},
    {"refineCollectionShardKey": NS, "key": {"_id": 1, "n": 1}},
]
CASES: Final = [
    *(pytest.param("ends", each, id=f"{next(iter(each))}-set") for each in UNSHARDED),
    *(pytest.param("to_cluster", each, id=f"{next(iter(each))}-cluster") for each in [*UNSHARDED[:2], *SHARDED]),
]


@pytest.mark.parametrize(("kinds", "command"), CASES)
def test_a_command_of_a_stalled_process_does_not_change_a_later_collection(
    kinds: str, command: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    """The process stalls between its check of the lease and the command; another one takes over and continues."""
    ends: Ends = request.getfixturevalue(kinds)
    database = ends.target[DATABASE]
    name = next(iter(command))

    async def run() -> None:
        async with opened(ends) as store, opened(ends) as other:
            await store.acquire()
            target = End("target", ends.uris[1])
            send = target.command

            async def stall(*arguments: Any) -> dict[str, Any]:  # noqa: ANN401 - of `End.command`
                if name in arguments[1] and not other.term:
                    ends.target[OWN]["sync.leases"].update_one({}, {"$set": {"until": datetime.fromtimestamp(0, UTC)}})
                    await other.acquire()
                    indexed(database)
                return await send(*arguments)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(target, "command", stall)
                on = "admin" if "Collection" in name else DATABASE
                with pytest.raises(LeaseLostError):
                    await run_command(store, target, on, command, NAMESPACE_NOT_FOUND)
            await target.close()

    database.create_collection("items")
    if name in ("reshardCollection", "refineCollectionShardKey"):
        ends.target.admin.command("shardCollection", NS, key={"_id": 1})
    asyncio.run(run())
    assert list(database.items.find()) == [{"_id": "later"}]
    assert sorted(database.items.index_information()) == ["_id_", "n_1"]
    [found] = database.list_collections(filter={"name": "items"})
    assert not found["options"]
    assert database.list_collection_names() == ["items"]
    if kinds == "to_cluster":
        assert ends.target.config["collections"].find_one({"_id": NS}) is None


@pytest.mark.parametrize("is_view", [False, True], ids=["collection", "view"])
def test_a_drop_whose_reply_was_lost_is_complete(ends: Ends, *, is_view: bool) -> None:
    """Its repetition finds no collection or view, and sends nothing."""
    sent: list[Any] = []

    async def run() -> None:
        async with opened(ends) as store:
            await store.acquire()
            target = End("target", ends.uris[1])
            send = target.command

            async def lose(*arguments: Any) -> dict[str, Any]:  # noqa: ANN401 - of `End.command`
                reply = await send(*arguments)
                if "drop" in arguments[1]:
                    sent.append(arguments[1])
                    raise AutoReconnect("the reply is lost")
                return reply

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(target, "command", lose)
                await run_command(store, target, DATABASE, {"drop": "items"}, NAMESPACE_NOT_FOUND)
            await target.close()

    options: dict[str, Any] = {"viewOn": "other", "pipeline": []} if is_view else {}
    ends.target[DATABASE].command("create", "items", **options)
    asyncio.run(run())
    assert len(sent) == 1
    assert ends.target[DATABASE].list_collection_names(filter={"name": "items"}) == []
