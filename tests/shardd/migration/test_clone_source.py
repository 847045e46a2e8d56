"""A recipient's pulls from a donor while clients write, on a real mongod."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import bson
import pytest
import trio
from bson.binary import Binary
from bson.int64 import Int64
from bson.max_key import MaxKey
from bson.min_key import MinKey
from bson.timestamp import Timestamp

from shardwright.shardd.local_mongod.reserved_sessions import ReservedSessions
from shardwright.shardd.migration.donor.clone_source import CloneSource
from shardwright.shardd.migration.donor.range_documents import RangeDigest, digest
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import encode_document
from tests.shardd.lone_mongod import LoneMongod
from tests.shardd.migration.source_world import (
    LONG,
    Document,
    Recipient,
    Transaction,
    World,
    documents_of,
    id_of,
    in_world,
    whole,
)

LOW, HIGH = {"a": 0}, {"a": 100}


@asynccontextmanager
async def running(world: World, **options: Any) -> AsyncIterator[CloneSource]:  # noqa: ANN401 - options of start
    """A running source."""
    source = await world.source()
    await source.start(**options)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(source.run)
        yield source
        source.close()


def check(
    lone: LoneMongod,
    db: str,
    before: list[Document],
    writes: Callable[[World], Awaitable[object]],
    **arguments: Any,  # noqa: ANN401 - arguments of in_world
) -> None:
    """Check that the recipient ends with the donor's documents, whatever is written after the start."""

    async def test(world: World) -> None:
        if before:
            await world.insert(*before)
        recipient = Recipient()
        async with running(world) as source:
            await writes(world)
            await recipient.clone(source)
            await recipient.catch_up(world, source)
        expected = await world.documents()
        assert recipient.documents == expected

    in_world(lone, test, db=db, **{"key": {"a": 1}, "low": LOW, "high": HIGH, **arguments})


# The clone


@pytest.mark.parametrize(
    ("key", "low", "high", "wanted"),
    [
        ({"a": 1}, {"a": 0}, {"a": 2}, {1, 2}),
        ({"a": 1}, *whole("a"), {0, 1, 2, 3, 4, 5, 6, 7}),
        ({"a": 1}, {"a": 2}, {"a": MaxKey()}, {3, 6, 7}),
        ({"a": 1}, {"a": MinKey()}, {"a": 0}, {0, 4, 5}),
        ({"a": 1, "b": 1}, {"a": 0, "b": 5}, {"a": 1, "b": MaxKey()}, {1, 2}),
        ({"a": 1, "b": 1}, {"a": 2, "b": 0}, {"a": MaxKey(), "b": MaxKey()}, {3, 6, 7}),
        ({"a": "hashed"}, *whole("a"), {0, 1, 2, 3, 4, 5, 6, 7}),
    ],
)
def test_the_clone_is_the_range(
    lone: LoneMongod, key: Document, low: Document, high: Document, wanted: set[int]
) -> None:
    documents: list[Document] = [
        {"_id": 0, "a": -1},
        {"_id": 1, "a": 0, "b": 5},
        {"_id": 2, "a": 1, "b": 5},
        {"_id": 3, "a": 2, "b": 0},
        {"_id": 4, "b": 1},
        {"_id": 5, "a": None},
        {"_id": 6, "a": MaxKey(), "b": MaxKey()},
        {"_id": 7, "a": "x", "b": 1},
    ]

    async def test(world: World) -> None:
        await world.insert(*documents)
        recipient = Recipient()
        async with running(world) as source:
            await recipient.clone(source)
            assert len(await source.next_clone_batch()) == 5, "it stays empty"
            estimate = await source.estimate()
        assert {bson.decode(each)["_id"] for each in recipient.documents.values()} == wanted
        assert source.documents_cloned == len(wanted)
        assert estimate.documents == len(wanted) - (6 in wanted and "hashed" not in key.values())

    in_world(lone, test, db="ranges", key=key, low=low, high=high)


def test_a_half_of_hashed_values(lone: LoneMongod) -> None:
    documents: list[Document] = [{"_id": number, "a": number} for number in range(100)]
    low, high = {"a": Int64(0)}, {"a": MaxKey()}

    async def nothing(world: World) -> None:
        assert 20 < len(await world.documents()) < 80

    check(lone, "half", documents, nothing, key={"a": "hashed"}, low=low, high=high)


def test_an_index_with_more_fields_than_the_shard_key_is_used(lone: LoneMongod) -> None:
    async def test(world: World) -> None:
        await world.command({"dropIndexes": "c", "index": "shard key"})
        await world.command({"createIndexes": "c", "indexes": [{"key": {"a": 1, "b": -1}, "name": "longer"}]})
        await world.insert(*({"_id": (a, b).__repr__(), "a": a, "b": b} for a in range(4) for b in range(3)))
        recipient = Recipient()
        async with running(world) as source:
            await recipient.clone(source)
        assert recipient.documents == await world.documents()
        assert len(recipient.documents) == 6

    in_world(lone, test, db="longer", key={"a": 1}, low={"a": 1}, high={"a": 3})


def test_many_batches_of_documents_of_all_sizes(lone: LoneMongod) -> None:
    async def test(world: World) -> None:
        await world.insert(*({"_id": number, "a": 1, "p": "x" * 100} for number in range(3000)))
        for number in range(3000, 3005):
            await world.insert({"_id": number, "a": 2, "p": "x" * 5_000_000})
        recipient = Recipient()
        async with running(world) as source:
            await recipient.clone(source)
        assert recipient.documents == await world.documents()
        assert source.documents_cloned == 3005
        assert source.bytes_cloned > 25_000_000

    in_world(lone, test, db="lengths", key={"a": 1}, low=LOW, high=HIGH)


def test_a_clone_resumes_from_a_key(lone: LoneMongod) -> None:
    async def test(world: World) -> None:
        await world.insert(*({"_id": number, "a": number} for number in range(50)))
        async with running(world, from_key=encode_document({"a": 40})) as source:
            found = documents_of(await source.next_clone_batch())
        assert [bson.decode(each)["a"] for each in found] == list(range(40, 50))

    in_world(lone, test, db="resumed", key={"a": 1}, low=LOW, high=HIGH)


def test_a_clone_batch_can_be_requested_again(lone: LoneMongod) -> None:
    async def test(world: World) -> None:
        await world.insert(*({"_id": number, "a": number} for number in range(1500)))
        world.range = world.range.of(world.pattern, *(encode_document(bound) for bound in whole("a")))
        async with running(world) as source:
            first = bytes(await source.next_clone_batch(0))
            assert await source.next_clone_batch(0) == first
            second = bytes(await source.next_clone_batch(1))
            assert await source.next_clone_batch(1) == second
            assert len(documents_of(memoryview(first))) + len(documents_of(memoryview(second))) == 1500
            assert source.documents_cloned == 1500
            for number in (0, 3, -1):
                with pytest.raises(CommandError, match="batch"):
                    await source.next_clone_batch(number)

    in_world(lone, test, db="again", key={"a": 1}, low=LOW, high=HIGH)


@pytest.mark.parametrize("from_key", [{"a": 100}, {"a": MaxKey()}])
def test_a_clone_resumes_from_the_last_key(lone: LoneMongod, from_key: Document) -> None:
    async def test(world: World) -> None:
        await world.insert({"_id": 1, "a": 1}, {"_id": 2, "a": MaxKey()})
        async with running(world, from_key=encode_document(from_key)) as source:
            found = documents_of(await source.next_clone_batch())
        assert [bson.decode(each)["_id"] for each in found] == [2][: "a" in from_key and from_key["a"] == MaxKey()]

    in_world(lone, test, db="lastkey", key={"a": 1}, low=LOW, high=from_key)


# Modifications


def test_plain_writes(lone: LoneMongod) -> None:
    async def write(world: World) -> None:
        await world.insert({"_id": 10, "a": 5}, {"_id": 11, "a": 500})
        await world.update({"_id": 1}, {"$set": {"v": 2}})
        await world.update({"_id": 2}, {"_id": 2, "a": 3, "replaced": True})
        await world.delete({"_id": 3})
        await world.update({"_id": 4}, {"$set": {"a": 1000}})
        await world.update({"_id": 5}, {"$set": {"a": 7}})
        await world.command({"findAndModify": "c", "query": {"_id": 6}, "update": {"$set": {"z": 1}}})
        await world.delete({"_id": 7})
        await world.insert({"_id": 7, "a": 8, "again": True})

    before: list[Document] = [{"_id": number, "a": number if number != 5 else 5000} for number in range(8)]
    check(lone, "plain", before, write)


def test_an_insert_outside_the_range_is_not_queued(lone: LoneMongod) -> None:
    async def test(world: World) -> None:
        async with running(world) as source:
            await world.insert({"_id": 1, "a": 100}, {"_id": 2, "a": 99})
            await source.wait_followed(await world.now())
            assert source.queued_ids == 1
            assert source.queued_bytes > 0
            mods = await source.next_mods()
            assert [bson.decode(each)["_id"] for each in mods.reload] == [2]
            assert mods.size == len(mods.reload[0])
            assert source.queued_ids == source.queued_bytes == 0

    in_world(lone, test, db="outside", key={"a": 1}, low=LOW, high=HIGH)


def test_apply_ops_commands(lone: LoneMongod) -> None:
    async def write(world: World) -> None:
        operations: list[Document] = [
            {"op": "i", "ns": "applied.c", "o": {"_id": 1, "a": 1}},
            {"op": "u", "ns": "applied.c", "o2": {"_id": 0}, "o": {"$v": 2, "diff": {"i": {"x": 1}}}},
            {"op": "d", "ns": "applied.c", "o": {"_id": 2}},
        ]
        await world.mongod.command("admin", {"applyOps": operations})
        inner = {"applyOps": [{"op": "i", "ns": "applied.c", "o": {"_id": 3, "a": 1}}]}
        await world.mongod.command("admin", {"applyOps": [{"op": "c", "ns": "admin.$cmd", "o": inner}]})

    check(lone, "applied", [{"_id": 0, "a": 0}, {"_id": 2, "a": 2}], write)


async def write_in(world: World, transaction: Transaction, *, length: int = 1) -> None:
    """Insert, update, delete; with long documents it takes more than one oplog entry."""
    for number in (10, 11):
        await world.insert({"_id": number, "a": number, "p": "x" * length}, **transaction.fields)
    await world.update({"_id": 1}, {"$inc": {"v": 1}}, **transaction.fields)
    await world.delete({"_id": 2}, **transaction.fields)
    other = {"insert": "other", "documents": [{"p": "x" * length}]}
    await world.command({**other, **transaction.fields})


BEFORE: list[Document] = [{"_id": 1, "a": 1}, {"_id": 2, "a": 2}]


@pytest.mark.parametrize("length", [1, LONG])
@pytest.mark.parametrize("is_internal", [False, True])
def test_transactions(lone: LoneMongod, length: int, is_internal: bool) -> None:
    async def write(world: World) -> None:
        lsid = {"txnNumber": Int64(7), "txnUUID": Binary(bytes(15) + b"1", 4)} if is_internal else {}
        transaction = Transaction(world, **lsid)
        await write_in(world, transaction, length=length)
        await transaction.commit()
        assert 11 in {bson.decode(each)["_id"] for each in (await world.documents()).values()}

    check(lone, f"transaction{length}{is_internal}", BEFORE, write)


@pytest.mark.parametrize("length", [1, LONG])
def test_prepared_transactions(lone: LoneMongod, length: int) -> None:
    async def write(world: World) -> None:
        transaction = Transaction(world)
        await write_in(world, transaction, length=length)
        time = await transaction.prepare()
        await world.insert({"_id": 50, "a": 50})
        await transaction.commit_prepared(time)

    check(lone, f"prepared{length}", BEFORE, write)


def test_transactions_that_are_aborted(lone: LoneMongod) -> None:
    async def test(world: World) -> None:
        async with running(world) as source:
            for prepares in (False, True):
                transaction = Transaction(world)
                await world.insert({"_id": 1, "a": 1}, **transaction.fields)
                if prepares:
                    await transaction.prepare()
                await transaction.abort()
            await source.wait_followed(await world.now())
            assert source.queued_ids == 0

    in_world(lone, test, db="aborted", key={"a": 1}, low=LOW, high=HIGH)


@pytest.mark.parametrize("length", [1, LONG])
def test_a_transaction_that_was_prepared_before_the_start(lone: LoneMongod, length: int) -> None:
    """Its writes are in the oplog before the position, and cannot be seen in the clone."""

    async def test(world: World) -> None:
        await world.insert(*BEFORE)
        transaction = Transaction(world)
        await write_in(world, transaction, length=length)
        time = await transaction.prepare()
        recipient = Recipient()
        async with running(world) as source:
            await recipient.clone(source)
            await recipient.catch_up(world, source)
            assert len(recipient.documents) == 2
            await transaction.commit_prepared(time)
            await recipient.catch_up(world, source)
        assert recipient.documents == await world.documents()
        assert len(recipient.documents) == 3
        parts = [each["o"] for each in world.observed]
        operations = [each["op"] for part in parts for each in part.get("applyOps", [])]
        assert [each for each in operations if each != "i"] == ["u", "d"]
        assert list(parts[-1]) == ["commitTransaction", "commitTimestamp"]

    in_world(lone, test, db=f"earlier{length}", key={"a": 1}, low=LOW, high=HIGH)


def test_a_chain_that_ends_in_another_collection(lone: LoneMongod) -> None:
    async def write(world: World) -> None:
        transaction = Transaction(world)
        await world.insert({"_id": 1, "a": 1, "p": "x" * LONG}, **transaction.fields)
        for _ in range(2):
            await world.command({"insert": "other", "documents": [{"p": "x" * LONG}], **transaction.fields})
        await transaction.commit()

    check(lone, "elsewhere", [], write)


def test_the_writes_of_reserved_sessions_are_ignored(lone: LoneMongod) -> None:
    async def test(world: World) -> None:
        await world.insert(*BEFORE)
        async with running(world) as source:
            async with ReservedSessions(world.mongod).session() as session:
                await session.delete(world.namespace, [{"q": {"_id": 1}, "limit": 1}])
            await source.wait_followed(await world.now())
            assert source.queued_ids == 0

    in_world(lone, test, db="reserved", key={"a": 1}, low=LOW, high=HIGH)


def test_equal_ids_with_different_bytes(lone: LoneMongod) -> None:
    async def write(world: World) -> None:
        await world.insert({"_id": 1.0, "a": 1})
        await world.delete({"_id": 1})
        await world.insert({"_id": 1, "a": 2})
        await world.delete({"_id": 1})
        await world.insert({"_id": 1.0, "a": 3})
        await world.delete({"_id": 2})
        await world.insert({"_id": Int64(2), "a": 4})

    check(lone, "written", [{"_id": 2, "a": 2}], write)


def test_equal_ids_by_the_collation(lone: LoneMongod) -> None:
    """Each id is looked up by itself, so a later batch might delete what an earlier one reloaded."""

    async def test(world: World) -> None:
        await world.insert({"_id": "A", "a": 1})
        recipient = Recipient(same=bytes.lower)
        async with running(world) as source:
            await recipient.clone(source)
            await world.delete({"_id": "A"})
            await world.insert({"_id": "a", "a": 2})
            await source.wait_followed(await world.now())
            recipient.apply(await source.next_mods())
            await world.update({"_id": "A"}, {"$set": {"v": 1}})  # logged as what it is: "a"
            await recipient.catch_up(world, source)
        assert [bson.decode(each) for each in recipient.documents.values()] == [{"_id": "a", "a": 2, "v": 1}]

    collation = {"collation": {"locale": "en", "strength": 2}}
    in_world(lone, test, db="collated", key={"a": 1}, low=LOW, high=HIGH, options=collation)


def test_modifications_can_be_requested_again(lone: LoneMongod) -> None:
    async def test(world: World) -> None:
        await world.insert({"_id": 1, "a": 1})
        async with running(world) as source:
            await world.update({"_id": 1}, {"$set": {"v": 1}})
            await source.wait_followed(await world.now())
            first = await source.next_mods(0)
            await world.update({"_id": 1}, {"$set": {"v": 2}})
            await world.insert({"_id": 2, "a": 2})
            await source.wait_followed(await world.now())
            again = await source.next_mods(0)
            assert [bson.decode(each).get("v") for each in first.reload] == [1]
            assert {bson.decode(each)["_id"]: bson.decode(each).get("v") for each in again.reload} == {1: 2, 2: None}
            assert (await source.next_mods(1)).size == 0
            for number in (0, 3):
                with pytest.raises(CommandError, match="batch"):
                    await source.next_mods(number)

    in_world(lone, test, db="modsagain", key={"a": 1}, low=LOW, high=HIGH)


def test_modifications_come_in_batches(lone: LoneMongod) -> None:
    """There are more than fit into one reply of mongod; the position is before the remaining ones."""

    async def test(world: World) -> None:
        recipient = Recipient()
        async with running(world) as source:
            await recipient.clone(source)
            for number in range(4):
                await world.insert({"_id": number, "a": 1, "p": "x" * 7_000_000})
            await world.delete({"_id": 0})
            await source.wait_followed(await world.now())
            first = await source.next_mods()
            assert len(first.reload) == 2
            assert first.position < await world.now()
            assert source.queued_ids >= 1
            recipient.apply(first)
            await recipient.catch_up(world, source)
        assert recipient.documents == await world.documents()
        assert recipient.position >= await world.now() or source.queued_ids == 0

    in_world(lone, test, db="batches", key={"a": 1}, low=LOW, high=HIGH)


def test_another_source_resumes_from_a_position(lone: LoneMongod) -> None:
    async def test(world: World) -> None:
        await world.insert(*BEFORE)
        recipient = Recipient()
        async with running(world) as source:
            await recipient.clone(source)
            await recipient.catch_up(world, source)
        await world.update({"_id": 1}, {"$set": {"v": 1}})
        await world.delete({"_id": 2})
        async with running(world, position=recipient.position) as source:
            assert source.position == recipient.position
            await recipient.catch_up(world, source)
        assert recipient.documents == await world.documents()

    in_world(lone, test, db="positions", key={"a": 1}, low=LOW, high=HIGH)


def test_the_position_advances_with_the_oplog_without_writes_to_the_collection(lone: LoneMongod) -> None:
    async def test(world: World) -> None:
        async with running(world) as source:
            time = (await world.command({"insert": "other", "documents": [{}]}))["operationTime"]
            while (await source.next_mods()).position < time:
                pass  # mongod tells at least once a second

    in_world(lone, test, db="moving", key={"a": 1}, low=LOW, high=HIGH)


# What ends it

GONE = {ErrorCode.NamespaceNotFound, ErrorCode.QueryPlanKilled}
"""Either the oplog shows that a collection is gone, or the scan of its documents notices first."""


def test_a_position_before_the_beginning_of_the_oplog(lone: LoneMongod) -> None:
    async def test(world: World) -> None:
        source = await world.source()
        with pytest.raises(CommandError, match="does not reach back") as failure:
            await source.start(position=Timestamp(1, 1))
        assert failure.value.code == ErrorCode.CappedPositionLost
        await expect_no_cursors(world)

    in_world(lone, test, db="lost", key={"a": 1}, low=LOW, high=HIGH)


def test_too_much_is_queued(lone: LoneMongod) -> None:
    async def test(world: World) -> None:
        source = await world.source(queued_bytes_max=10_000)
        await source.start()
        await world.insert(*({"_id": number, "a": 1} for number in range(1000)))
        with pytest.raises(CommandError, match="high memory usage") as failure:
            await source.run()
        assert failure.value.code == ErrorCode.ExceededMemoryLimit
        with pytest.raises(CommandError, match="high memory usage"):
            await source.next_mods()

    in_world(lone, test, db="memory", key={"a": 1}, low=LOW, high=HIGH)


@pytest.mark.parametrize(
    ("command", "codes"),
    [
        ({"drop": "c"}, GONE),
        ({"dropDatabase": 1}, GONE),
        ({"collMod": "c", "validationLevel": "moderate"}, {ErrorCode.Interrupted}),
        ({"dropIndexes": "c", "index": "b"}, {ErrorCode.Interrupted}),
        ({"createIndexes": "c", "indexes": [{"key": {"x": 1}, "name": "x"}]}, {ErrorCode.Interrupted}),
    ],
)
def test_changes_of_the_collection(lone: LoneMongod, command: Document, codes: set[int]) -> None:
    async def test(world: World) -> None:
        await world.command({"createIndexes": "c", "indexes": [{"key": {"b": 1}, "name": "b"}]})
        await world.insert(*BEFORE)
        await expect_end(world, command, codes)

    in_world(lone, test, db="changed", key={"a": 1}, low=LOW, high=HIGH)


@pytest.mark.parametrize("command", [("gone.c", "gone.d"), ("gone.d", "gone.c")])
def test_renames_of_the_collection_and_onto_it(lone: LoneMongod, command: tuple[str, str]) -> None:
    async def test(world: World) -> None:
        await world.command({"insert": "d", "documents": [{}]})
        source = await world.source()
        await source.start()
        rename = {"renameCollection": command[0], "to": command[1], "dropTarget": True}
        await world.mongod.command("admin", rename)
        with pytest.raises(CommandError) as failure:
            await source.run()
        assert failure.value.code in GONE

    in_world(lone, test, db="gone", key={"a": 1}, low=LOW, high=HIGH)


async def expect_end(world: World, command: Document, codes: set[int]) -> None:
    """Check that the source ends with an error, which waiting calls raise too."""
    source = await world.source()
    await source.start()
    failures: list[int] = []

    async def wait() -> None:
        try:
            await source.wait_followed(Timestamp(0xFFFFFFFF, 1))
        except CommandError as error:
            failures.append(error.code)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await world.command(command)
        with pytest.raises(CommandError) as failure:
            await source.run()
    assert failure.value.code in codes
    assert failures == [failure.value.code]
    for ask in (source.next_clone_batch, source.next_mods):
        with pytest.raises(CommandError) as again:
            await ask()
        assert again.value is failure.value


def test_closing_leaves_no_cursor_behind(lone: LoneMongod) -> None:
    async def test(world: World) -> None:
        await world.insert(*({"_id": number, "a": 1, "p": "x" * 1000} for number in range(5000)))
        source = await world.source()
        await source.start()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(source.run)
            await source.next_clone_batch()
            source.close()
            source.close()
        with pytest.raises(CommandError, match="has ended") as failure:
            await source.next_mods()
        assert failure.value.code == ErrorCode.Interrupted
        await expect_no_cursors(world)
        cancelled = await world.source()
        await cancelled.start()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(cancelled.run)
            await cancelled.next_clone_batch()
            nursery.cancel_scope.cancel()
        await expect_no_cursors(world)

    in_world(lone, test, db="closing", key={"a": 1}, low=LOW, high=HIGH)


async def expect_no_cursors(world: World) -> None:
    """Wait until there is no open cursor except the listing's own."""
    listing = {
        "aggregate": 1,
        "pipeline": [
            {"$currentOp": {"idleCursors": True, "allUsers": True}},
            {"$match": {"ns": {"$in": ["local.oplog.rs", str(world.namespace)]}, "cursor": {"$exists": True}}},
        ],
        "cursor": {},
    }
    with trio.fail_after(30):
        while (await world.mongod.command("admin", listing))["cursor"]["firstBatch"]:
            pass


# The digest


def test_a_digest_depends_on_the_documents_and_not_on_their_order(lone: LoneMongod) -> None:
    async def test(world: World) -> None:
        async def read() -> RangeDigest:
            source = await world.source()
            return await digest(world.mongod, world.namespace, source.collection_uuid, world.pattern, world.range)

        documents: list[Document] = [{"_id": number, "a": 5, "p": "x" * number} for number in range(100)]
        await world.insert(*documents)
        first = await read()
        assert first.documents == 100
        await world.command({"delete": "c", "deletes": [{"q": {}, "limit": 0}]})
        await world.insert(*reversed(documents))
        assert await read() == first
        assert RangeDigest.from_document(first.to_document()) == first
        await world.insert({"_id": "elsewhere", "a": 1000})
        assert await read() == first
        await world.update({"_id": 3}, {"$set": {"p": "y"}})
        assert await read() != first

    in_world(lone, test, db="digests", key={"a": 1}, low=LOW, high=HIGH)


def test_ids_of_documents() -> None:
    assert id_of(bson.encode({"_id": 1})) == id_of(bson.encode({"a": 2, "_id": 1.0}))
