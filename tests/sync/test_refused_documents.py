"""Any number of refused documents: they are counted, retried in pieces, and some of them are shown."""

import argparse
import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from io import StringIO
from typing import Any, Final

import bson
import pytest
from pymongo import MongoClient

from shardwright.sync import cli, store
from shardwright.sync.api import LOOPBACK, Api
from shardwright.sync.changes import Value, id_of
from shardwright.sync.ends import End
from shardwright.sync.preparing import Options
from shardwright.sync.replication import ERROR_MAX, Replication
from shardwright.sync.session import Sync
from shardwright.sync.store import Refusal, Store
from shardwright.sync.writing import Writer
from tests.sync.running import replica_set

COUNT: Final = 8
IDS: Final = [id_of(bson.encode({"_id": each})) for each in range(COUNT)]


@pytest.fixture(scope="module")
def single(mongod_binary: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A replica set, for the stored state alone."""
    with replica_set(mongod_binary, tmp_path_factory.mktemp("single"), "single") as uri:
        yield uri


@pytest.fixture
def pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three documents are read at a time."""
    monkeypatch.setattr(store, "FAILURES_AT_ONCE", 3)


@asynccontextmanager
async def opened(uri: str) -> AsyncIterator[Store]:
    """A replication that has refused documents in two collections; so have its neighbours in the order of ids."""
    end = End("target", uri)
    try:
        for each in ("a", "b", "c"):
            found = Store(each, end, end, source_writes=True)
            for number, key in enumerate(IDS):
                await found.note_failures([Refusal(f"db.{number % 2}", key, 121, "refused")])
        yield Store("b", end, end, source_writes=True)
    finally:
        await end.close()


def run(uri: str, check: Callable[[Store], Coroutine[Any, Any, None]]) -> None:
    """Run a check with the replication."""

    async def main() -> None:
        async with opened(uri) as found:
            await check(found)

    with MongoClient[dict[str, Any]](uri) as client:
        client.drop_database("shardwright")
    asyncio.run(main())


@pytest.mark.usefixtures("pieces")
def test_refused_documents_are_counted_and_read_in_pieces(single: str) -> None:
    async def check(found: Store) -> None:
        assert await found.count_failures() == COUNT
        read: list[dict[str, Any]] = []
        while some := await found.failures(read[-1] if read else None):
            assert len(some) <= 3
            read += some
        assert {(each["_id"]["ns"], bytes(each["_id"]["id"])) for each in read} == {
            (f"db.{number % 2}", bytes((kind,)) + value) for number, (kind, value) in enumerate(IDS)
        }
        assert (len(read), {each["_id"]["sync"] for each in read}) == (COUNT, {"b"})
        assert all((each["code"], each["error"], each["attempts"]) == (121, "refused", 1) for each in read)

    run(single, check)


def test_a_long_error_is_shortened(single: str) -> None:
    """The error of a unique index has the key, which may be as long as the document."""

    async def check(found: Store) -> None:
        await found.note_failures([Refusal("db.long", IDS[0], 11000, "dup key: " + "x" * 17_000_000)])
        [failure] = [each for each in await found.failures() if each["_id"]["ns"] == "db.long"]
        assert len(failure["error"]) == ERROR_MAX + 1
        await found.forget_failure(failure)

    run(single, check)


@pytest.mark.usefixtures("pieces")
def test_every_refused_document_is_retried_once(single: str) -> None:
    async def check(found: Store) -> None:
        other: Any = None
        writer = Writer(other, other, found)
        retried: list[Value] = []

        async def reconcile(namespace: str, ids: list[Value]) -> list[Refusal]:
            retried.extend(ids)
            refused = [Refusal(namespace, each, 121, "refused again") for each in ids if each in IDS[:4]]
            await found.note_failures(refused)
            return refused

        writer.reconcile = reconcile  # type: ignore[method-assign, assignment]
        assert await writer.retry_failures() == 4
        assert sorted(retried) == sorted(IDS)
        assert await found.count_failures() == 4

    run(single, check)


@pytest.mark.usefixtures("pieces")
def test_the_first_refused_documents_are_shown_with_their_number(
    single: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def check(found: Store) -> None:
        sync = Sync(Replication("mongodb://a", "mongodb://b"), Options())
        sync._store = found
        server = await asyncio.start_server(Api(sync).serve, LOOPBACK)
        monkeypatch.setattr(cli, "published_port", lambda _: server.sockets[0].getsockname()[1])
        options = argparse.Namespace(retry_failures=False)
        async with server:
            for left, note in ((COUNT, f"the first 3 of {COUNT} refused documents"), (3, "")):
                out = StringIO()
                assert await asyncio.to_thread(cli._steer, ["failures", "1"], options, out) == 0
                shown = json.loads(out.getvalue())
                assert [set(each) for each in shown["failures"]] == [{"_id", "code", "error", "attempts"}] * 3
                assert (shown["success"], shown["total"]) == (True, left)
                assert capsys.readouterr().err.strip() == note
                while await found.count_failures() > 3:
                    await found.forget_failure((await found.failures())[0])
        await sync.close()

    run(single, check)
