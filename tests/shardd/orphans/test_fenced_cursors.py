"""Cursors of a real mongod older than an incoming range: their remaining documents are kept, looked up or dropped."""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import nullcontext, suppress
from functools import partial
from itertools import count
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, cast

import bson
import pytest
import trio
from bson.binary import Binary
from bson.int64 import Int64
from pymongo import MongoClient
from pymongo.collection import Collection

from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.daemon.users import SYSTEM, UserName
from shardwright.shardd.orphans import fenced_cursor, fenced_cursors
from shardwright.shardd.orphans.fenced_cursor import is_well_formed
from shardwright.shardd.orphans.fenced_cursors import FencedCursors
from shardwright.shardd.orphans.open_cursors import OpenCursors
from shardwright.shardd.orphans.ownership_filter import OwnershipFilter
from shardwright.sharding.chunks import ChunkRange
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.frames import next_request_id
from shardwright.wire.message import OpMsg, op_msg
from shardwright.wire.rawbson import encode_document
from shardwright.wire.request import Request
from shardwright.wire.transport.client import decode_reply
from shardwright.wire.transport.cursor import RawCursor
from tests.integration.waiting import eventually
from tests.shardd.lone_mongod import LoneMongod

if TYPE_CHECKING:
    from shardwright.daemon.sidecar.mongod import Upstream

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
        name = f"fenced_cursors{next(_names)}"
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


async def opened(mongod: LocalMongod, documents: Documents, command: dict[str, Any]) -> int:
    """The id of a new cursor."""
    body = encode_document({**command, "$db": documents.database.name})
    reply = decode_reply(await mongod.pool.exchange(op_msg(body, request_id=next_request_id())))
    await trio.sleep(CLOCK_SECONDS)
    cursor_id: int = reply["cursor"]["id"]
    return cursor_id


async def rest_of(mongod: LocalMongod, fenced: FencedCursors, documents: Documents, cursor_id: int) -> list[Any]:
    """Return ``n`` or ``_id`` of the remaining documents of a cursor."""
    found: list[dict[str, Any]] = []
    current = cursor_id
    while current:
        asked = get_more(documents, current, batchSize=7)
        reply = await fenced.answer(raw(current), asked)
        if reply is None:
            reply = await mongod.pool.exchange(asked.message.frame)
            if raw(current) in fenced:
                reply, _ = await fenced.without_hidden(raw(current), reply)
        cursor = decode_reply(reply)["cursor"]
        found += cursor["nextBatch"]
        current = cursor["id"]
        assert current in (0, cursor_id)
    return [each.get("n", each.get("_id")) for each in found]


Test = Callable[[LocalMongod, FencedCursors, int], Awaitable[None]]


def run(lone: LoneMongod, documents: Documents, command: dict[str, Any], test: Test) -> None:
    """Run a test with an open cursor."""

    async def main(mongod: LocalMongod) -> None:
        cursor_id = await opened(mongod, documents, command)
        await test(mongod, FencedCursors(mongod, OpenCursors(mongod)), cursor_id)

    lone.run(main)


@pytest.mark.parametrize(
    "command",
    [
        {"find": "c", "batchSize": 3},
        {"find": "c", "batchSize": 0},
        {"find": "c", "projection": {"_id": 0, "n": 1}, "batchSize": 3},
    ],
    ids=["begun", "deferred", "kept"],
)
def test_a_cursor_on_a_dropped_collection_does_not_refuse_ranges_of_its_successor(
    lone: LoneMongod, documents: Documents, command: dict[str, Any]
) -> None:
    """A mongod keeps the cursor until its client reads on, and the successor may have another shard key."""
    successor = ShardKeyPattern.from_mapping({"n": "hashed"})
    bounds = (encode_document({"n": Int64(each)}) for each in (0, 10))
    arriving = OwnershipFilter(successor, [ChunkRange.of(successor, *bounds)], None)

    async def test(mongod: LocalMongod, fenced: FencedCursors, cursor_id: int) -> None:
        await fenced.hide(documents.full_name, hidden())
        documents.drop()
        documents.insert_many(documents_of(ARRIVING))
        await fenced.hide(documents.full_name, arriving)

    run(lone, documents, command, test)


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
    async def test(mongod: LocalMongod, fenced: FencedCursors, cursor_id: int) -> None:
        await fenced.hide(documents.full_name, hidden(100, 110))
        await fenced.hide(documents.full_name, hidden(110, 200))
        documents.insert_many(documents_of(ARRIVING))
        found = await rest_of(mongod, fenced, documents, cursor_id)
        names = [f"id {key}" for key in OWNED[3:]]
        assert found == (names if command.get("projection") == {"_id": 1} else OWNED[3:])
        assert raw(cursor_id) not in fenced

    run(lone, documents, command, test)


def test_a_document_that_has_been_deleted_is_left_out(lone: LoneMongod, documents: Documents) -> None:
    command: dict[str, Any] = {"find": "c", "projection": {"n": 1}, "batchSize": 3}

    async def test(mongod: LocalMongod, fenced: FencedCursors, cursor_id: int) -> None:
        await fenced.hide(documents.full_name, hidden())
        asked = get_more(documents, cursor_id)
        reply = await mongod.pool.exchange(asked.message.frame)
        documents.delete_one({"n": 5})
        documents.insert_one({"_id": "id 5", "key": 105})
        reply, _ = await fenced.without_hidden(raw(cursor_id), reply)
        left = [each["n"] for each in decode_reply(reply)["cursor"]["nextBatch"]]
        assert left == [key for key in OWNED[3:] if key != 5]

    run(lone, documents, command, test)


def test_ids_are_looked_up_in_groups(lone: LoneMongod, documents: Documents, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fenced_cursor, "_ID_BYTES_MAX", 30)
    command: dict[str, Any] = {"find": "c", "projection": {"n": 1}, "batchSize": 3}

    async def test(mongod: LocalMongod, fenced: FencedCursors, cursor_id: int) -> None:
        await fenced.hide(documents.full_name, hidden())
        documents.insert_many(documents_of(ARRIVING))
        assert await rest_of(mongod, fenced, documents, cursor_id) == OWNED[3:]

    run(lone, documents, command, test)


def test_an_id_is_compared_by_its_bytes_under_a_collation(lone: LoneMongod, documents: Documents) -> None:
    """The index on ``_id`` has the collection's collation."""
    name = "collated"
    collated = documents.database.create_collection(name, collation={"locale": "en", "strength": 1})
    collated.insert_many([{"_id": letter, "key": 1} for letter in "abcde"])
    command: dict[str, Any] = {"find": name, "projection": {"_id": 1}, "batchSize": 2}

    async def test(mongod: LocalMongod, fenced: FencedCursors, cursor_id: int) -> None:
        await fenced.hide(collated.full_name, hidden())
        reply = await mongod.pool.exchange(get_more(collated, cursor_id).message.frame)
        collated.delete_one({"_id": "d"})
        collated.insert_one({"_id": "D", "key": 1})
        reply, _ = await fenced.without_hidden(raw(cursor_id), reply)
        assert decode_reply(reply)["cursor"]["nextBatch"] == [{"_id": "c"}, {"_id": "e"}]

    run(lone, documents, command, test)


def test_the_error_of_an_ended_cursor_is_remembered(
    lone: LoneMongod, documents: Documents, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second receipt does not turn it into CursorNotFound."""
    documents.insert_many({"key": 50, "text": "x" * 1_000_000} for _ in range(20))
    command: dict[str, Any] = {"find": "c", "limit": 1000, "batchSize": 3}
    monkeypatch.setattr(fenced_cursors, "KEPT_BYTES_MAX", 1000)

    async def test(_mongod: LocalMongod, fenced: FencedCursors, cursor_id: int) -> None:
        for _ in range(2):
            await fenced.hide(documents.full_name, hidden())
        for _ in range(2):
            with pytest.raises(CommandError, match="more was left of it than can be kept") as caught:
                await fenced.answer(raw(cursor_id), get_more(documents, cursor_id))
            assert caught.value.code == QUERY_PLAN_KILLED

    run(lone, documents, command, test)


def test_a_killed_cursor_is_forgotten(lone: LoneMongod, documents: Documents) -> None:
    command: dict[str, Any] = {"find": "c", "limit": 1000, "batchSize": 3}

    async def test(mongod: LocalMongod, fenced: FencedCursors, cursor_id: int) -> None:
        await fenced.hide(documents.full_name, hidden())
        assert raw(cursor_id) in fenced
        killing = {"killCursors": "c", "cursors": [Int64(cursor_id), Int64(5)], "$db": documents.database.name}
        reply = await mongod.pool.exchange(op_msg(bson.encode(killing), request_id=1))
        answered = await fenced.after_kill(reply, None)
        assert answered is not None
        said = decode_reply(answered)
        assert (said["cursorsKilled"], said["cursorsNotFound"]) == ([cursor_id], [5])
        assert raw(cursor_id) not in fenced

    run(lone, documents, command, test)


def test_a_batch_that_is_being_read_comes_before_what_is_kept(lone: LoneMongod, documents: Documents) -> None:
    command: dict[str, Any] = {"find": "c", "limit": 1000, "batchSize": 3}

    async def test(mongod: LocalMongod, _: FencedCursors, cursor_id: int) -> None:
        cursors = OpenCursors(mongod)
        fenced = FencedCursors(mongod, cursors)
        cursors.in_use.enter(raw(cursor_id))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fenced.hide, documents.full_name, hidden())
            await trio.sleep(0.2)
            assert raw(cursor_id) not in fenced
            reply = await mongod.pool.exchange(get_more(documents, cursor_id, batchSize=4).message.frame)
            cursors.in_use.exit(raw(cursor_id))
        assert [each["n"] for each in decode_reply(reply)["cursor"]["nextBatch"]] == OWNED[3:7]
        assert await rest_of(mongod, fenced, documents, cursor_id) == OWNED[7:]

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

    async def test(_mongod: LocalMongod, fenced: FencedCursors, cursor_id: int) -> None:
        with trio.move_on_after(2):
            with suppress(BackendError):
                await fenced.hide(documents.full_name, hidden())
        assert len(asked) == 2
        for _ in range(2):
            with pytest.raises(CommandError, match="what was left of it could not be read") as caught:
                await fenced.answer(raw(cursor_id), get_more(documents, cursor_id))
            assert caught.value.code == QUERY_PLAN_KILLED
            await fenced.hide(documents.full_name, hidden())

    run(lone, documents, command, test)


def test_a_cursor_in_use_after_its_rest_was_read_in_part_loses_nothing(
    lone: LoneMongod, documents: Documents, monkeypatch: pytest.MonkeyPatch
) -> None:
    documents.insert_many({"n": n, "key": 50, "text": "x" * 1_000_000} for n in range(20, 60))
    command: dict[str, Any] = {"find": "c", "limit": 1000, "batchSize": 3}
    next_batch = RawCursor.next_batch
    asked: list[int] = []

    async def in_use_at_second(cursor: RawCursor, **arguments: object) -> Any:  # noqa: ANN401
        if "getMore" in cursor._next:
            asked.append(cursor.id)
            if len(asked) == 2:
                raise CommandError(ErrorCode.CursorInUse, "cursor is in use")
        return await next_batch(cursor, **arguments)

    monkeypatch.setattr(RawCursor, "next_batch", in_use_at_second)

    async def test(mongod: LocalMongod, fenced: FencedCursors, cursor_id: int) -> None:
        await fenced.hide(documents.full_name, hidden())
        assert len(asked) > 2
        documents.insert_many(documents_of(ARRIVING))
        assert await rest_of(mongod, fenced, documents, cursor_id) == list(range(3, 60))

    run(lone, documents, command, test)


@pytest.mark.parametrize("is_in_use", [True, False], ids=["slow batch", "slow rest"])
def test_no_receipt_waits_for_a_slow_cursor(lone: LoneMongod, documents: Documents, is_in_use: bool) -> None:
    slow = {"$where": "sleep(300) || true"}
    command: dict[str, Any] = {"find": "c", "filter": slow, "limit": 1000, "batchSize": 1}

    async def test(mongod: LocalMongod, _: FencedCursors, cursor_id: int) -> None:
        cursors = OpenCursors(mongod)
        fenced = FencedCursors(mongod, cursors)
        if is_in_use:
            cursors.in_use.enter(raw(cursor_id))
        began = trio.current_time()
        await fenced.hide(documents.full_name, hidden())
        assert trio.current_time() - began < 4
        with pytest.raises(CommandError, match="could not be read in time"):
            await fenced.answer(raw(cursor_id), get_more(documents, cursor_id))
        # A batch that was being read may contain what it must not.
        with pytest.raises(CommandError, match="could not be read in time"):
            await fenced.without_hidden(raw(cursor_id), b"")

    run(lone, documents, command, test)


def test_many_receipts_cost_a_cursor_as_much_as_one(
    lone: LoneMongod, documents: Documents, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Adjacent ranges become one, and cursors share their filters."""
    calls = {"covers": 0, "merged_with": 0}

    def count_calls(name: str) -> None:
        original = getattr(OwnershipFilter, name)

        def counted(ownership: OwnershipFilter, other: Any) -> Any:  # noqa: ANN401
            calls[name] += 1
            return original(ownership, other)

        monkeypatch.setattr(OwnershipFilter, name, counted)

    for name in calls:
        count_calls(name)
    command: dict[str, Any] = {"find": "c", "batchSize": 3}

    async def test(mongod: LocalMongod, fenced: FencedCursors, cursor_id: int) -> None:
        others = [await opened(mongod, documents, command) for _ in range(3)]
        for key in range(100, 120):
            await fenced.hide(documents.full_name, hidden(key, key + 1))
            await fenced.hide(documents.full_name, hidden(key, key + 1))
        assert calls["merged_with"] == 39
        documents.insert_many(documents_of(ARRIVING))
        for each in (cursor_id, *others):
            assert await rest_of(mongod, fenced, documents, each) == OWNED[3:]
        assert calls["covers"] == 4 * len([*OWNED[3:], *ARRIVING])

    run(lone, documents, command, test)


def test_a_shard_key_is_refined_between_two_receipts(lone: LoneMongod, documents: Documents) -> None:
    command: dict[str, Any] = {"find": "c", "projection": {"key": 1}, "batchSize": 3}
    refined = ShardKeyPattern.from_mapping({"key": 1, "n": 1})
    bounds = (encode_document({"key": 110, "n": 110}), encode_document({"key": 112, "n": 112}))
    later = OwnershipFilter(refined, [ChunkRange.of(refined, *bounds)], None)

    async def test(mongod: LocalMongod, fenced: FencedCursors, cursor_id: int) -> None:
        await fenced.hide(documents.full_name, hidden(100, 110))
        await fenced.hide(documents.full_name, later)
        documents.insert_many(documents_of(list(range(100, 120))))
        documents.insert_one({"_id": "id 110, owned", "key": 110, "n": 1})
        found = await rest_of(mongod, fenced, documents, cursor_id)
        owned = [*OWNED[3:], *range(112, 120)]
        assert found == [*(f"id {key}" for key in owned), "id 110, owned"]

    run(lone, documents, command, test)


def test_what_is_left_is_read_without_what_was_hidden_before(lone: LoneMongod, documents: Documents) -> None:
    """A refined key may leave a cursor that shows neither key nor ``_id``."""
    command: dict[str, Any] = {"find": "c", "projection": {"_id": 0, "key": 1}, "batchSize": 3}
    refined = ShardKeyPattern.from_mapping({"key": 1, "n": 1})
    bounds = (encode_document({"key": 110, "n": 0}), encode_document({"key": 120, "n": 0}))
    later = OwnershipFilter(refined, [ChunkRange.of(refined, *bounds)], None)

    async def test(mongod: LocalMongod, fenced: FencedCursors, cursor_id: int) -> None:
        await fenced.hide(documents.full_name, hidden(100, 110))
        documents.insert_many(documents_of(list(range(100, 110))))
        await fenced.hide(documents.full_name, later)
        documents.insert_many(documents_of(list(range(110, 120))))
        reply = await fenced.answer(raw(cursor_id), get_more(documents, cursor_id))
        assert reply is not None
        assert [each["key"] for each in decode_reply(reply)["cursor"]["nextBatch"]] == OWNED[3:]

    run(lone, documents, command, test)


SESSION: Final = {"id": Binary(b"1" * 16, 4)}
OTHER_SESSION: Final = {"id": Binary(b"2" * 16, 4)}


@pytest.mark.parametrize("collection", ["c", "other"])
@pytest.mark.parametrize("opener", [{}, {"lsid": SESSION}], ids=["without session", "in session"])
@pytest.mark.parametrize(
    "reader",
    [{}, {"lsid": SESSION}, {"lsid": OTHER_SESSION}, {"maxTimeMS": 5}, {"batchSize": -1}, {"lsid": 5}],
    ids=str,
)
@pytest.mark.parametrize("limit", [0, 1000])
def test_readers_are_refused_as_by_a_mongod(
    lone: LoneMongod,
    documents: Documents,
    opener: dict[str, Any],
    reader: dict[str, Any],
    collection: str,
    limit: int,
) -> None:
    command = {"find": "c", "batchSize": 3, "limit": limit, **opener}

    async def test(mongod: LocalMongod, fenced: FencedCursors, cursor_id: int) -> None:
        asked = {"getMore": Int64(cursor_id), "collection": collection, **reader, "$db": documents.database.name}
        request = Request(OpMsg(op_msg(encode_document(asked), request_id=next_request_id())))
        expected = decode_reply(await mongod.pool.exchange(request.message.frame))
        left = OWNED[3:]
        if expected["ok"]:  # mongod has returned the rest of the cursor
            return
        await fenced.hide(documents.full_name, hidden())
        if is_well_formed(request):
            with pytest.raises(CommandError) as caught:
                fenced.check_reader(raw(cursor_id), request, None)
            assert (caught.value.code, caught.value.message) == (expected["code"], expected["errmsg"])
        else:
            fenced.check_reader(raw(cursor_id), request, None)
            assert await fenced.answer(raw(cursor_id), request) is None, "mongod is asked"
        if not opener:
            assert await rest_of(mongod, fenced, documents, cursor_id) == left

    run(lone, documents, command, test)


@pytest.mark.parametrize(
    ("user", "message"),
    [
        (None, None),
        (SYSTEM, None),
        (UserName("a", "admin"), "was not created by the authenticated user"),
    ],
    ids=str,
)
def test_kept_documents_of_a_cursor_without_session_are_given_to_no_user(
    lone: LoneMongod, documents: Documents, user: UserName | None, message: str | None
) -> None:
    """Only mongod knows whose the cursor was."""
    command = {"find": "c", "batchSize": 3, "limit": 1000}

    async def test(_mongod: LocalMongod, fenced: FencedCursors, cursor_id: int) -> None:
        await fenced.hide(documents.full_name, hidden())
        with nullcontext() if message is None else pytest.raises(CommandError, match=message):
            fenced.check_reader(raw(cursor_id), get_more(documents, cursor_id), user)

    run(lone, documents, command, test)


def test_the_session_of_another_user_is_refused_as_by_a_mongod(lone: LoneMongod, documents: Documents) -> None:
    user = UserName("a", "admin")
    owned = {"id": SESSION["id"], "uid": Binary(user.digest)}
    command = {"find": "c", "batchSize": 3, "limit": 1000, "lsid": owned}

    async def test(mongod: LocalMongod, fenced: FencedCursors, cursor_id: int) -> None:
        await fenced.hide(documents.full_name, hidden())
        asked = {"getMore": Int64(cursor_id), "collection": "c", "lsid": SESSION, "$db": documents.database.name}
        request = Request(OpMsg(op_msg(encode_document(asked), request_id=next_request_id())))
        with pytest.raises(CommandError, match="is not the same as the operation context's session id") as caught:
            fenced.check_reader(raw(cursor_id), request, UserName("b", "admin"))
        assert caught.value.code == ErrorCode.Unauthorized
        fenced.check_reader(raw(cursor_id), request, user)
        reply = _kill_reply(cursor_id)
        assert await fenced.after_kill(reply, UserName("b", "admin")) is reply
        killed = await fenced.after_kill(reply, user)
        assert killed is not None
        assert decode_reply(killed)["cursorsKilled"] == [cursor_id]

    run(lone, documents, command, test)


def _kill_reply(cursor_id: int) -> bytes:
    """mongod's reply to ``killCursors`` for a cursor that it does not know."""
    body = {"cursorsKilled": [], "cursorsNotFound": [Int64(cursor_id)], "cursorsAlive": [], "ok": 1.0}
    return op_msg(encode_document(body), request_id=next_request_id())


@pytest.mark.parametrize("limit", [0, 1000], ids=["on mongod", "kept"])
def test_cursors_that_time_out_are_forgotten(lone: LoneMongod, documents: Documents, limit: int) -> None:
    command = {"find": "c", "batchSize": 3, "limit": limit}
    timeless = {**command, "noCursorTimeout": True}

    async def test(mongod: LocalMongod, fenced: FencedCursors, cursor_id: int) -> None:
        other = await opened(mongod, documents, timeless)
        await fenced.hide(documents.full_name, hidden())
        await fenced.forget_ended()
        assert raw(cursor_id) in fenced
        await mongod.command("admin", {"setParameter": 1, "cursorTimeoutMillis": 1})
        try:
            with trio.fail_after(20):  # mongod looks every four seconds
                while raw(cursor_id) in fenced:
                    await trio.sleep(0.2)
                    await fenced.forget_ended()
        finally:
            await mongod.command("admin", {"setParameter": 1, "cursorTimeoutMillis": 600_000})
        assert raw(other) in fenced

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

    async def test(_mongod: LocalMongod, fenced: FencedCursors, cursor_id: int) -> None:
        others = [documents.database.command(command)["cursor"]["id"] for _ in range(9)]
        await fenced.hide(documents.full_name, hidden())
        assert listings == [10]
        assert all(fenced.is_substituted(raw(each)) for each in (cursor_id, *others))

    run(lone, documents, command, test)


@pytest.mark.parametrize("is_kept", [True, False], ids=["kept", "replaced in turn"])
def test_a_cursor_is_remembered_while_its_substitute_is(lone: LoneMongod, documents: Documents, is_kept: bool) -> None:
    """The daemon keeps the rest of a substitute that mongod has closed; killing the cursor leaves nothing behind."""
    command: dict[str, Any] = {"find": "c", "batchSize": 0, "limit": 1000}

    async def test(mongod: LocalMongod, fenced: FencedCursors, cursor_id: int) -> None:
        upstream = cast("Upstream", SimpleNamespace(forward=lambda frame, _flags: mongod.pool.exchange(frame)))
        await fenced.hide(documents.full_name, hidden(100, 110))
        substitute = await fenced.substitute(upstream, raw(cursor_id))
        number = int.from_bytes(substitute, "little", signed=True)
        if is_kept:
            await mongod.pool.exchange(get_more(documents, number, batchSize=1).message.frame)
        await trio.sleep(CLOCK_SECONDS)
        await fenced.hide(documents.full_name, hidden(110, 200))
        assert fenced.is_substituted(substitute) is not is_kept
        last = substitute if is_kept else await fenced.substitute(upstream, substitute)
        await fenced.forget_ended()
        assert raw(cursor_id) in fenced
        assert substitute in fenced
        await fenced.kill(raw(cursor_id))
        assert raw(cursor_id) not in fenced
        assert substitute not in fenced
        assert not await OpenCursors(mongod).still_open([substitute, last])

    run(lone, documents, command, test)


@pytest.mark.parametrize("preference", [None, "primary"])
def test_a_cursor_is_opened_again_on_a_former_primary(
    lone: LoneMongod, documents: Documents, preference: str | None
) -> None:
    """An open cursor can be read on there; so can one that a substitute stands for."""
    command: dict[str, Any] = {"find": "c", "batchSize": 0}
    if preference is not None:
        command["$readPreference"] = {"mode": preference}

    async def test(mongod: LocalMongod, fenced: FencedCursors, cursor_id: int) -> None:
        upstream = cast("Upstream", SimpleNamespace(forward=lambda frame, _flags: mongod.pool.exchange(frame)))
        await fenced.hide(documents.full_name, hidden())
        await mongod.command("admin", {"replSetStepDown": 60, "force": True})
        try:
            substitute = await fenced.substitute(upstream, raw(cursor_id))
            number = int.from_bytes(substitute, "little", signed=True)
            assert await rest_of(mongod, fenced, documents, number) == OWNED
        finally:
            await mongod.command("admin", {"replSetFreeze": 0})
            admin = documents.database.client.admin
            eventually(lambda: admin.command("hello")["isWritablePrimary"], within=20, what="it is primary again")

    run(lone, documents, command, test)


@pytest.mark.parametrize(
    "command", [{"find": "c", "limit": 1000, "batchSize": 3}, {"find": "c", "batchSize": 0}], ids=str
)
@pytest.mark.parametrize("is_renamed", [False, True])
def test_a_cursor_ends_with_its_collection(
    lone: LoneMongod, documents: Documents, command: dict[str, Any], is_renamed: bool
) -> None:
    """There may be another one of that name, and remaining documents may be kept or the cursor may not have begun."""
    errors: list[dict[str, Any]] = []

    async def test(mongod: LocalMongod, fenced: FencedCursors, cursor_id: int) -> None:
        upstream = cast("Upstream", SimpleNamespace(forward=lambda frame, _flags: mongod.pool.exchange(frame)))
        request = get_more(documents, cursor_id)
        await fenced.hide(documents.full_name, hidden())
        of_mongod = await opened(mongod, documents, {**command, "limit": 0, "batchSize": 3})
        if is_renamed:
            documents.rename("renamed")
        else:
            documents.drop()
        documents.insert_one({"key": 1})
        reply = await mongod.pool.exchange(get_more(documents, of_mongod).message.frame)
        errors.append(decode_reply(reply))
        is_substituted = fenced.is_substituted(raw(cursor_id))
        read = partial(fenced.substitute, upstream) if is_substituted else partial(fenced.answer, request=request)
        with pytest.raises(CommandError) as caught:
            await read(raw(cursor_id))
        errors.append(caught.value.reply())
        assert raw(cursor_id) not in fenced

    run(lone, documents, command, test)
    assert {name: errors[0][name] for name in errors[1]} == errors[1]


def test_a_cursor_in_use_stays_open(lone: LoneMongod, documents: Documents) -> None:
    """The error names the cursor that the client knows, as does the reply to the command that uses it."""
    command: dict[str, Any] = {"find": "c", "batchSize": 0}

    async def test(mongod: LocalMongod, fenced: FencedCursors, cursor_id: int) -> None:
        upstream = cast("Upstream", SimpleNamespace(forward=lambda frame, _flags: mongod.pool.exchange(frame)))
        await fenced.hide(documents.full_name, hidden())
        substitute = await fenced.substitute(upstream, raw(cursor_id))
        number = int.from_bytes(substitute, "little", signed=True)
        refused = CommandError(ErrorCode.CursorInUse, f"cursor id {number} is already in use")
        with pytest.raises(CommandError, match=f"cursor id {cursor_id} is already in use$"):
            await fenced.with_own_id(raw(cursor_id), substitute, op_msg(encode_document(refused.reply()), request_id=1))
        reply = await mongod.pool.exchange(get_more(documents, number, batchSize=5).message.frame)
        await fenced.kill(raw(cursor_id))
        said = decode_reply(await fenced.with_own_id(raw(cursor_id), substitute, reply))["cursor"]
        assert (said["id"], len(said["nextBatch"])) == (cursor_id, 5)

    run(lone, documents, command, test)
