"""The table of migrated session history, on a real mongod."""

import time
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any
from uuid import UUID

import bson
import pytest
import trio
from bson.binary import Binary
from bson.datetime_ms import DatetimeMS

from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.shardd.session_history.migrated_history import HISTORY, HistoryTable
from shardwright.shardd.session_history.statement import (
    INCOMPLETE_HISTORY,
    ExecutedStatement,
    SessionWrite,
    incomplete_history,
    range_of,
    session_of,
)
from shardwright.sharding.namespace import Namespace
from shardwright.wire.limits import BSON_OBJECT_BYTES_MAX
from shardwright.wire.rawbson import encode_document, index
from tests.shardd.lone_mongod import TEST_SECONDS_MAX, LoneMongod
from tests.shardd.session_history.history_writes import Session, collection_uuid, donor_history, drained, of_session

_databases = count()
_NOW = time.time_ns() // 1_000_000


def lsid_of(session: Session) -> bytes:
    raw = bson.encode({"lsid": {"id": Binary.from_uuid(session.id)}})
    lsid = session_of(raw, index(raw)[b"lsid"])
    assert lsid is not None
    return lsid


def executed(session: Session, number: int, *ids: int, last_use: int = _NOW, key: int | None = None) -> list[bytes]:
    write = SessionWrite(lsid_of(session), number)
    raw_key = None if key is None else encode_document({"a": key})
    statement = ExecutedStatement(write, 0, "u", "db.c", b"0" * 16, last_use, key=raw_key)
    return [statement._replace(statement_id=each).to_bson() for each in ids]


def run(lone: LoneMongod, test: Callable[[LocalMongod, trio.Nursery], Awaitable[None]]) -> None:
    async def main() -> None:
        with trio.fail_after(TEST_SECONDS_MAX):
            async with lone.local() as mongod, trio.open_nursery() as nursery:
                await test(mongod, nursery)
                nursery.cancel_scope.cancel()

    trio.run(main)


def test_a_statement_keeps_its_form() -> None:
    write = SessionWrite(lsid_of(Session()), 3)
    statement = ExecutedStatement(
        *(write, 2, "i", "db.c", b"1" * 16, 1_234_567_890_123),
        inserted_id=encode_document({"_id": 1}),
        key=encode_document({"b": 1, "_id": 2}),
        image=encode_document({"a": 1}),
        image_kind="postImage",
    )
    assert ExecutedStatement.from_bson(statement.to_bson()) == statement


@pytest.mark.parametrize("form", [{"id": 1}, {}, {"id": Binary(b"0" * 16, 4), "txnUUID": Binary(b"1" * 16, 4)}])
def test_sessions_without_history(form: dict[str, object]) -> None:
    raw = bson.encode({"lsid": form})
    assert session_of(raw, index(raw)[b"lsid"]) is None


def test_the_user_is_part_of_a_session() -> None:
    session = Session()
    raw = bson.encode({"lsid": {"id": Binary.from_uuid(session.id), "uid": b"2" * 32}})
    lsid = session_of(raw, index(raw)[b"lsid"])
    assert lsid is not None
    assert lsid != lsid_of(session)
    assert len(lsid) == len(lsid_of(session))


def test_absorbed_statements_are_found_by_the_next_primary(lone: LoneMongod) -> None:
    session, other = Session(), Session()

    async def test(mongod: LocalMongod, nursery: trio.Nursery) -> None:
        first, second = HistoryTable(mongod), HistoryTable(mongod)
        for _ in range(2):
            await first.absorb([*executed(session, 4, 0, 1), *executed(other, 1, 0)])
        await first.absorb(executed(session, 5, 1, 7))
        await first.absorb(executed(session, 4, 2))
        assert second.sessions == {}
        await second.begin_term(1, nursery)
        for table in (first, second):
            assert (table.sessions[lsid_of(session)], table.sessions[lsid_of(other)]) == (5, 1)
            assert set(await table.lookup(SessionWrite(lsid_of(session), 5))) == {1, 7}
            assert set(await table.lookup(SessionWrite(lsid_of(session), 4))) == {0, 1}
            assert await table.lookup(SessionWrite(lsid_of(session), 6)) == {}
        second.end_term()
        assert second.sessions == {}

    run(lone, test)


def document_of(size: int, **fields: object) -> bytes:
    """A document of some bytes, most of them in its ``_id``."""
    empty = len(encode_document({"_id": "", **fields}))
    return encode_document({"_id": "x" * (size - empty), **fields})


_LONGEST = document_of(BSON_OBJECT_BYTES_MAX)


@pytest.mark.parametrize(
    "fields",
    [
        {"image": _LONGEST, "image_kind": "preImage"},
        {"inserted_id": encode_document({"_id": 1}), "image": _LONGEST},
        {"inserted_id": _LONGEST, "image": document_of(BSON_OBJECT_BYTES_MAX, a=1)},
        {"inserted_id": _LONGEST},
    ],
    ids=lambda fields: "+".join(fields),
)
@pytest.mark.parametrize("key", [None, _LONGEST], ids=["", "key"])
def test_a_statement_that_is_too_long_for_one_document(
    lone: LoneMongod, fields: dict[str, Any], key: bytes | None
) -> None:
    """It is found whole, among others. Without its key, it is transferred with every range."""
    session = Session()
    write = SessionWrite(lsid_of(session), 1)
    statement = ExecutedStatement(*(write, 1, "i", "db.c", b"0" * 16, _NOW), **fields, key=key)
    documents = statement.to_documents()

    async def test(mongod: LocalMongod, nursery: trio.Nursery) -> None:
        table = HistoryTable(mongod)
        await table.begin_term(1, nursery)
        await table.absorb([*executed(session, 1, 0, 2), *documents])
        found = await table.lookup(write)
        assert [*found] == [0, 1, 2]
        assert found[1] == statement._replace(key=None, last_use=found[1].last_use)

    assert len(documents) > 1
    assert max(map(len, documents)) <= BSON_OBJECT_BYTES_MAX
    run(lone, test)


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_an_image_is_lost_with_any_of_its_pieces(missing: int) -> None:
    write = SessionWrite(lsid_of(Session()), 1)
    statement = ExecutedStatement(*(write, 0, "u", "db.c", b"0" * 16, _NOW), image=_LONGEST, image_kind="preImage")
    documents = statement.to_documents()
    assert ExecutedStatement.all_from_bson(documents) == [statement]
    del documents[missing]
    assert ExecutedStatement.all_from_bson(documents) == [statement._replace(image=None, image_kind=None)]


def test_a_statement_replaces_its_pieces() -> None:
    write = SessionWrite(lsid_of(Session()), 1)
    lost = ExecutedStatement(write, 0, "u", "db.c", b"0" * 16, _NOW)
    documents = lost._replace(image=_LONGEST, image_kind="preImage").to_documents()
    assert ExecutedStatement.all_from_bson([*lost.to_documents(), *documents[1:]]) == [lost]


def test_incomplete_history_is_found_too(lone: LoneMongod) -> None:
    session = Session()

    async def test(mongod: LocalMongod, nursery: trio.Nursery) -> None:
        table = HistoryTable(mongod)
        write = SessionWrite(lsid_of(session), 4)
        await table.absorb([incomplete_history(write, _NOW).to_bson(), *executed(session, 4, 0)])
        found = await table.lookup(write)
        assert set(found) == {INCOMPLETE_HISTORY, 0}
        assert found[INCOMPLETE_HISTORY].is_incomplete_history

    run(lone, test)


async def last_uses(mongod: LocalMongod, session: Session) -> list[int]:
    find = {"find": HISTORY.collection, "filter": range_of(SessionWrite(lsid_of(session), 4))}
    reply = await mongod.command(HISTORY.db, find)
    return [int(DatetimeMS(each["lastUse"])) for each in reply["cursor"]["firstBatch"]]


def test_it_expires_with_its_sessions(lone: LoneMongod) -> None:
    session = Session()
    written = _NOW - 20 * 60 * 1000

    async def test(mongod: LocalMongod, nursery: trio.Nursery) -> None:
        table = HistoryTable(mongod)
        await table.absorb(executed(session, 4, 0, 1, last_use=written))
        reply = await mongod.command(HISTORY.db, {"listIndexes": HISTORY.collection})
        (ttl,) = [each for each in reply["cursor"]["firstBatch"] if each["name"] != "_id_"]
        assert (ttl["key"], ttl["expireAfterSeconds"]) == ({"lastUse": 1}, 1800)
        assert await last_uses(mongod, session) == [written, written]
        await table.lookup(SessionWrite(lsid_of(session), 4))
        refreshed = await last_uses(mongod, session)
        assert min(refreshed) >= _NOW
        await table.lookup(SessionWrite(lsid_of(session), 4))
        assert await last_uses(mongod, session) == refreshed

    run(lone, test)


def test_it_expires_after_the_clock_was_ahead(lone: LoneMongod) -> None:
    used_ahead, used_now = Session(), Session()

    async def test(mongod: LocalMongod, nursery: trio.Nursery) -> None:
        table = HistoryTable(mongod)
        await table.absorb(executed(used_ahead, 4, 0, 1, last_use=_NOW + 365 * 24 * 3600 * 1000))
        await table.absorb(executed(used_now, 4, 0, last_use=_NOW))
        await table.sweep(_NOW + 1)
        assert await last_uses(mongod, used_ahead) == [_NOW + 1] * 2
        assert await last_uses(mongod, used_now) == [_NOW]
        assert {lsid_of(used_ahead), lsid_of(used_now)} <= table.sessions.keys()
        await table.sweep(_NOW + 32 * 60 * 1000)
        assert table.sessions == {}

    run(lone, test)


def test_received_history_is_passed_to_the_next_owner(lone: LoneMongod) -> None:
    inside, outside, unknown, lost, elsewhere = (Session() for _ in range(5))
    namespace = Namespace(f"inherited{next(_databases)}", "c")

    async def test(mongod: LocalMongod, nursery: trio.Nursery) -> None:
        uuid = await collection_uuid(mongod, namespace)
        table = HistoryTable(mongod)
        statements: list[bytes] = []
        for session, key in ((inside, 5), (outside, 15), (unknown, None)):
            for raw in executed(session, 1, 0, key=key):
                statement = ExecutedStatement.from_bson(raw)._replace(
                    namespace=str(namespace), collection_uuid=uuid.bytes
                )
                statements.append(statement.to_bson())
        write = SessionWrite(lsid_of(lost), 1)
        statements += [incomplete_history(write, _NOW).to_bson(), *executed(elsewhere, 1, 0, key=5)]
        await table.absorb(statements)
        told = await drained(await donor_history(mongod, namespace, {"a": 0}, {"a": 10}))
        found = {
            name: len(of_session(told, session))
            for name, session in {
                "inside": inside,
                "outside": outside,
                "unknown": unknown,
                "lost": lost,
                "elsewhere": elsewhere,
            }.items()
        }
        assert found == {"inside": 1, "outside": 0, "unknown": 1, "lost": 1, "elsewhere": 0}

    run(lone, test)


@pytest.mark.parametrize(
    ("was", "key"),
    [
        pytest.param(UUID(int=1), {"a": 15}, id="resharded"),
        pytest.param(None, {"a": 0}, id="refined"),
    ],
)
def test_received_history_outlives_a_change_of_the_key(lone: LoneMongod, was: UUID | None, key: dict[str, int]) -> None:
    """The present places of such statements' documents are unknown, but their retries may arrive."""
    session = Session()
    namespace = Namespace(f"inherited{next(_databases)}", "c")

    async def test(mongod: LocalMongod, nursery: trio.Nursery) -> None:
        uuid = await collection_uuid(mongod, namespace)
        (raw,) = executed(session, 1, 0, key=key["a"])
        statement = ExecutedStatement.from_bson(raw)._replace(namespace=str(namespace))
        await HistoryTable(mongod).absorb([statement._replace(collection_uuid=(was or uuid).bytes).to_bson()])
        history = await donor_history(mongod, namespace, {"a": 0, "b": 0}, {"a": 10, "b": 0})
        (told,) = of_session(await drained(history), session)
        assert (told.collection_uuid, told.key) == (uuid.bytes, None)

    run(lone, test)
