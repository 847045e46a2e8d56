"""Cursors of a real mongod that are older than an incoming range: what is read of them, kept, looked up or ended."""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from itertools import count
from typing import Any, Final

import bson
import pytest
import trio
from bson.int64 import Int64
from pymongo import MongoClient
from pymongo.collection import Collection

from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.shardd.orphans import older_cursors
from shardwright.shardd.orphans.older_cursors import OlderCursors
from shardwright.shardd.orphans.open_cursors import OpenCursors
from shardwright.shardd.orphans.ownership_filter import OwnershipFilter
from shardwright.sharding.chunks import ChunkRange
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.frames import next_request_id
from shardwright.wire.message import OpMsg, op_msg
from shardwright.wire.rawbson import encode_document
from shardwright.wire.request import Request
from shardwright.wire.transport.client import decode_reply
from shardwright.wire.transport.cursor import RawCursor
from tests.shardd.lone_mongod import LoneMongod

PATTERN: Final = ShardKeyPattern.from_mapping({"key": 1})
OWNED: Final = list(range(20))
ARRIVING: Final = list(range(100, 120))
QUERY_PLAN_KILLED: Final = 175
CLOCK_SECONDS: Final = 0.002
"""mongod knows to the millisecond when a cursor was opened."""

Documents = Collection[dict[str, Any]]
_names = count()


def hidden(low: int = 100, high: int = 200) -> OwnershipFilter:
    bounds = (encode_document({"key": each}) for each in (low, high))
    return OwnershipFilter(PATTERN, [ChunkRange.of(PATTERN, *bounds)], None)


@pytest.fixture
def documents(lone: LoneMongod) -> Iterator[Documents]:
    """A new collection with the documents that the shard owns."""
    with MongoClient[dict[str, Any]](lone.address, directConnection=True) as client:
        name = f"older_cursors{next(_names)}"
        client[name].c.insert_many(documents_of(OWNED))
        yield client[name].c
        client.drop_database(name)


def documents_of(keys: list[int]) -> list[dict[str, Any]]:
    return [{"_id": f"id {key}", "key": key, "n": key, "text": "x" * 100} for key in keys]


def raw(cursor_id: int) -> bytes:
    return cursor_id.to_bytes(8, "little", signed=True)


def get_more(collection: Documents, cursor_id: int, **options: int) -> Request:
    command: dict[str, Any] = {
        "getMore": Int64(cursor_id),
        "collection": collection.name,
        **options,
        "$db": collection.database.name,
    }
    return Request(OpMsg(op_msg(encode_document(command), request_id=next_request_id())))


async def rest_of(mongod: LocalMongod, older: OlderCursors, documents: Documents, cursor_id: int) -> list[Any]:
    """The ``n`` or ``_id`` of what is left of a cursor."""
    found: list[dict[str, Any]] = []
    current = cursor_id
    while current:
        asked = get_more(documents, current, batchSize=7)
        reply = older.answer(raw(current), asked)
        if reply is None:
            reply = await mongod.pool.exchange(asked.message.frame)
            if raw(current) in older:
                reply, _ = await older.without_hidden(raw(current), reply)
        cursor = decode_reply(reply)["cursor"]
        found += cursor["nextBatch"]
        current = cursor["id"]
        assert current in (0, cursor_id)
    return [each.get("n", each.get("_id")) for each in found]


Test = Callable[[LocalMongod, OlderCursors, int], Awaitable[None]]


def run(lone: LoneMongod, documents: Documents, command: dict[str, Any], test: Test) -> None:
    """Run a test with an open cursor."""

    async def main(mongod: LocalMongod) -> None:
        body = encode_document({**command, "$db": documents.database.name})
        reply = decode_reply(await mongod.pool.exchange(op_msg(body, request_id=next_request_id())))
        await trio.sleep(CLOCK_SECONDS)
        await test(mongod, OlderCursors(mongod, OpenCursors(mongod)), reply["cursor"]["id"])

    lone.run(main)


@pytest.mark.parametrize(
    "command",
    [
        {"find": "c", "batchSize": 3},
        {"find": "c", "projection": {"_id": 1}, "batchSize": 3},
        {"find": "c", "projection": {"key": "$n", "n": 1}, "batchSize": 3},
        {"find": "c", "limit": 1000, "batchSize": 3},
        {"find": "c", "projection": {"_id": 0, "n": 1}, "batchSize": 3},
        {"aggregate": "c", "pipeline": [{"$project": {"n": 1}}], "cursor": {"batchSize": 3}},
        {"aggregate": "c", "pipeline": [{"$limit": 1000}], "cursor": {"batchSize": 3}},
    ],
    ids=str,
)
def test_what_arrives_is_left_out(lone: LoneMongod, documents: Documents, command: dict[str, Any]) -> None:
    async def test(mongod: LocalMongod, older: OlderCursors, cursor_id: int) -> None:
        await older.hide(documents.full_name, hidden(100, 110))
        await older.hide(documents.full_name, hidden(110, 200))
        documents.insert_many(documents_of(ARRIVING))
        found = await rest_of(mongod, older, documents, cursor_id)
        names = [f"id {key}" for key in OWNED[3:]]
        assert found == (names if command.get("projection") == {"_id": 1} else OWNED[3:])
        assert raw(cursor_id) not in older

    run(lone, documents, command, test)


def test_a_document_that_has_been_deleted_is_left_out(lone: LoneMongod, documents: Documents) -> None:
    command: dict[str, Any] = {"find": "c", "projection": {"n": 1}, "batchSize": 3}

    async def test(mongod: LocalMongod, older: OlderCursors, cursor_id: int) -> None:
        await older.hide(documents.full_name, hidden())
        asked = get_more(documents, cursor_id)
        reply = await mongod.pool.exchange(asked.message.frame)
        documents.delete_one({"n": 5})
        documents.insert_one({"_id": "id 5", "key": 105})
        reply, _ = await older.without_hidden(raw(cursor_id), reply)
        left = [each["n"] for each in decode_reply(reply)["cursor"]["nextBatch"]]
        assert left == [key for key in OWNED[3:] if key != 5]

    run(lone, documents, command, test)


def test_ids_are_looked_up_in_groups(lone: LoneMongod, documents: Documents, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(older_cursors, "_ID_BYTES_MAX", 30)
    command: dict[str, Any] = {"find": "c", "projection": {"n": 1}, "batchSize": 3}

    async def test(mongod: LocalMongod, older: OlderCursors, cursor_id: int) -> None:
        await older.hide(documents.full_name, hidden())
        documents.insert_many(documents_of(ARRIVING))
        assert await rest_of(mongod, older, documents, cursor_id) == OWNED[3:]

    run(lone, documents, command, test)


def test_an_id_is_compared_by_its_bytes_under_a_collation(lone: LoneMongod, documents: Documents) -> None:
    """The index on ``_id`` has the collection's collation."""
    name = "collated"
    collated = documents.database.create_collection(name, collation={"locale": "en", "strength": 1})
    collated.insert_many([{"_id": letter, "key": 1} for letter in "abcde"])
    command: dict[str, Any] = {"find": name, "projection": {"_id": 1}, "batchSize": 2}

    async def test(mongod: LocalMongod, older: OlderCursors, cursor_id: int) -> None:
        await older.hide(collated.full_name, hidden())
        reply = await mongod.pool.exchange(get_more(collated, cursor_id).message.frame)
        collated.delete_one({"_id": "d"})
        collated.insert_one({"_id": "D", "key": 1})
        reply, _ = await older.without_hidden(raw(cursor_id), reply)
        assert decode_reply(reply)["cursor"]["nextBatch"] == [{"_id": "c"}, {"_id": "e"}]

    run(lone, documents, command, test)


def test_the_error_of_an_ended_cursor_is_remembered(
    lone: LoneMongod, documents: Documents, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second receipt does not turn it into CursorNotFound."""
    documents.insert_many({"key": 50, "text": "x" * 1_000_000} for _ in range(20))
    command: dict[str, Any] = {"find": "c", "limit": 1000, "batchSize": 3}
    monkeypatch.setattr(older_cursors, "KEPT_BYTES_MAX", 1000)

    async def test(_mongod: LocalMongod, older: OlderCursors, cursor_id: int) -> None:
        for _ in range(2):
            await older.hide(documents.full_name, hidden())
        for _ in range(2):
            with pytest.raises(CommandError, match="more was left of it than can be kept") as caught:
                older.answer(raw(cursor_id), get_more(documents, cursor_id))
            assert caught.value.code == QUERY_PLAN_KILLED

    run(lone, documents, command, test)


def test_a_killed_cursor_is_forgotten(lone: LoneMongod, documents: Documents) -> None:
    command: dict[str, Any] = {"find": "c", "limit": 1000, "batchSize": 3}

    async def test(_mongod: LocalMongod, older: OlderCursors, cursor_id: int) -> None:
        await older.hide(documents.full_name, hidden())
        assert raw(cursor_id) in older
        killing = {"killCursors": "c", "cursors": [Int64(cursor_id)], "$db": documents.database.name}
        await older.kill_of(Request(OpMsg(op_msg(bson.encode(killing), request_id=1))))
        assert raw(cursor_id) not in older

    run(lone, documents, command, test)


def test_a_batch_that_is_being_read_comes_before_what_is_kept(lone: LoneMongod, documents: Documents) -> None:
    command: dict[str, Any] = {"find": "c", "limit": 1000, "batchSize": 3}

    async def test(mongod: LocalMongod, _: OlderCursors, cursor_id: int) -> None:
        cursors = OpenCursors(mongod)
        older = OlderCursors(mongod, cursors)
        cursors.in_use.enter(raw(cursor_id))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(older.hide, documents.full_name, hidden())
            await trio.sleep(0.2)
            assert raw(cursor_id) not in older
            reply = await mongod.pool.exchange(get_more(documents, cursor_id, batchSize=4).message.frame)
            cursors.in_use.exit(raw(cursor_id))
        assert [each["n"] for each in decode_reply(reply)["cursor"]["nextBatch"]] == OWNED[3:7]
        assert await rest_of(mongod, older, documents, cursor_id) == OWNED[7:]

    run(lone, documents, command, test)


@pytest.mark.parametrize("is_interrupted", [False, True])
def test_no_document_is_missed_if_what_is_left_cannot_be_read(
    lone: LoneMongod, documents: Documents, monkeypatch: pytest.MonkeyPatch, is_interrupted: bool
) -> None:
    """The receipt is cancelled, or fails, when a part has been read from mongod."""
    documents.insert_many({"key": 50, "text": "x" * 1_000_000} for _ in range(20))
    command: dict[str, Any] = {"find": "c", "limit": 1000, "batchSize": 3}
    next_batch = RawCursor.next_batch
    asked: list[int] = []

    async def failing(cursor: RawCursor, **arguments: object) -> Any:  # noqa: ANN401
        if "getMore" in cursor._next:
            asked.append(cursor.id)
            if len(asked) == 2:
                if is_interrupted:
                    await trio.sleep_forever()
                raise BackendError("mongod", "does not answer", sent=True)
        return await next_batch(cursor, **arguments)

    monkeypatch.setattr(RawCursor, "next_batch", failing)

    async def test(_mongod: LocalMongod, older: OlderCursors, cursor_id: int) -> None:
        with trio.move_on_after(2):
            with suppress(BackendError):
                await older.hide(documents.full_name, hidden())
        assert len(asked) == 2
        for _ in range(2):
            with pytest.raises(CommandError, match="what was left of it could not be read") as caught:
                older.answer(raw(cursor_id), get_more(documents, cursor_id))
            assert caught.value.code == QUERY_PLAN_KILLED
            await older.hide(documents.full_name, hidden())

    run(lone, documents, command, test)


def test_the_commands_of_all_cursors_that_have_not_begun_are_listed_at_once(
    lone: LoneMongod, documents: Documents, monkeypatch: pytest.MonkeyPatch
) -> None:
    command: dict[str, Any] = {"find": "c", "batchSize": 0}
    listings: list[int] = []
    raw_commands = OpenCursors.raw_commands

    async def counted(cursors: OpenCursors, cursor_ids: list[int]) -> dict[int, bytes]:
        listings.append(len(cursor_ids))
        return await raw_commands(cursors, cursor_ids)

    monkeypatch.setattr(OpenCursors, "raw_commands", counted)

    async def test(_mongod: LocalMongod, older: OlderCursors, cursor_id: int) -> None:
        others = [documents.database.command(command)["cursor"]["id"] for _ in range(9)]
        await older.hide(documents.full_name, hidden())
        assert listings == [10]
        assert all(older.is_substituted(raw(each)) for each in (cursor_id, *others))

    run(lone, documents, command, test)
