"""Cursors of a real mongod that are listed as open, and cursors that end with an earlier process."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any
from unittest import mock

import pytest
import trio
from pymongo import MongoClient
from pymongo.collection import Collection
from pymongo.cursor import Cursor
from pymongo.errors import CursorNotFound

from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.shardd.local_mongod.shard_key_index import OWN_CURSOR_COMMENT
from shardwright.shardd.orphans.open_cursors import InheritedCursors, OpenCursors, client_cursors, now
from tests.shardd.lone_mongod import LoneMongod

MANY = 120
"""More than the 101 documents that a first batch has by default."""

CLOCK_SECONDS = 0.002
"""mongod knows to the millisecond when a cursor was opened."""

Documents = Collection[dict[str, Any]]
_names = count()


@pytest.fixture
def client(lone: LoneMongod) -> Iterator[MongoClient[dict[str, Any]]]:
    with MongoClient[dict[str, Any]](lone.address, directConnection=True) as connected:
        yield connected


@pytest.fixture
def documents(client: MongoClient[dict[str, Any]]) -> Iterator[Documents]:
    """A new collection with two documents."""
    name = f"open_cursors{next(_names)}"
    client[name].c.insert_many([{"_id": 1}, {"_id": 2}])
    yield client[name].c
    client.drop_database(name)


def opened(collection: Documents, **options: Any) -> Cursor[dict[str, Any]]:  # noqa: ANN401 - options of find
    """A cursor with one document left."""
    cursor = collection.find(batch_size=1, **options)
    next(cursor)
    return cursor


def is_open(cursor: Cursor[dict[str, Any]]) -> bool:
    try:
        next(cursor)
    except CursorNotFound:
        return False
    return True


def test_listing(lone: LoneMongod, documents: Documents) -> None:
    other = documents.database.other
    other.insert_many([{}, {}])

    async def check(mongod: LocalMongod) -> None:
        with ExitStack() as cursors:
            mine = {cursors.enter_context(opened(documents)).cursor_id for _ in range(MANY)}
            elsewhere = cursors.enter_context(opened(other)).cursor_id
            cloning = cursors.enter_context(opened(documents, comment=OWN_CURSOR_COMMENT)).cursor_id
            listing, present, until = OpenCursors(mongod), now(), datetime.now(UTC)
            await listing.older(documents.full_name, opened_until=present)
            await trio.sleep(CLOCK_SECONDS)
            cursors.enter_context(opened(documents))
            found = await listing.older(documents.full_name, opened_until=present)
            assert {each.id for each in found} == mine
            assert {each.namespace for each in found} == {documents.full_name}
            assert {each.command["find"] for each in found} == {documents.name}
            found = [
                each
                for each in await client_cursors(mongod, opened_until=until)
                if each.namespace.startswith(f"{documents.database.name}.")
            ]
            assert {each.id for each in found} == {*mine, elsewhere, cloning}

    lone.run(check)


def test_cursors_of_ended_transactions_hold_nothing_back(
    lone: LoneMongod, client: MongoClient[dict[str, Any]], documents: Documents
) -> None:
    asked: list[tuple[object, int]] = []

    async def check(mongod: LocalMongod) -> None:
        cursors = OpenCursors(mongod)

        def is_open(lsid: Mapping[str, Any], number: int) -> bool:
            asked.append((lsid["id"], number))
            return len(asked) == 1

        cursors.is_transaction_open = is_open
        with client.start_session() as session:
            session.start_transaction()
            documents.database.command({"find": documents.name, "batchSize": 1}, session=session)
            session.commit_transaction()
            await cursors.wait_closed(documents.full_name, opened_until=now())
            assert [lsid for lsid, _ in asked] == [session.session_id["id"]] * 2

    lone.run(check)


def test_cursors_of_an_earlier_process_end(
    lone: LoneMongod, client: MongoClient[dict[str, Any]], documents: Documents
) -> None:
    config = client.config.openCursors
    config.insert_many([{}, {}])

    async def check(mongod: LocalMongod) -> None:
        with ExitStack() as cursors:
            before = [cursors.enter_context(opened(documents)) for _ in range(MANY)]
            kept = cursors.enter_context(opened(config))
            former = InheritedCursors(mongod)
            await trio.sleep(CLOCK_SECONDS)
            later = cursors.enter_context(opened(documents))
            await former.end()
            assert former.are_gone
            assert not any(map(is_open, before))
            assert is_open(kept)
            assert is_open(later)

    lone.run(check)
    config.drop()


def test_cursors_opened_before_the_clock_was_set_back(lone: LoneMongod, documents: Documents) -> None:
    """They look as if they were opened in the future, and count as open all the same."""

    async def check(mongod: LocalMongod) -> None:
        with opened(documents) as cursor:
            command = mongod.command

            async def before(db: str, request: Mapping[str, Any]) -> dict[str, Any]:
                pipeline = [{"$set": {"cursor.createdDate": {"$add": ["$cursor.createdDate", 3_600_000]}}}]
                stages = [*request["pipeline"][:1], *pipeline, *request["pipeline"][1:]]
                return await command(db, {**request, "pipeline": stages})

            with mock.patch.object(mongod, "command", before):
                of_former = await client_cursors(mongod, opened_until=datetime.now(UTC) - timedelta(minutes=1))
                older = await OpenCursors(mongod).older(documents.full_name, opened_until=now())
            for found in (of_former, older):
                assert cursor.cursor_id in {each.id for each in found}

    lone.run(check)
