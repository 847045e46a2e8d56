"""The cache of a reader, parts of pages that do not answer, and routers without a reply."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from shardwright.console import reader as module
from shardwright.console.collections import LISTED_MAX, UnknownCollection, chunk_sizes, collection_entry, collections
from shardwright.console.reader import ENTRIES_MAX, Document, Reader, Refused, of_routers, partly


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(test())


class Stub(Reader):
    """A reader whose catalog has collections with one chunk each."""

    def __init__(self, collections: int = 0) -> None:
        super().__init__(cast("Any", None))
        self.entries = [{"_id": f"db.c{n}", "key": {"a": 1}, "uuid": n} for n in range(collections)]
        self.counted = 0

    async def find(self, db: str, collection: str, query: Mapping[str, Any], **options: Any) -> list[Document]:  # noqa: ANN401 - passed on
        del db
        if collection == "collections":
            return [] if "_id" in query else self.entries[: options["limit"]]
        return [{"lastmod": 1}] if collection == "chunks" else []

    async def aggregate(self, *arguments: Any, **_options: Any) -> list[Document]:  # noqa: ANN401 - passed on
        if arguments[1] != "chunks":
            return []
        self.counted += 1
        return [{"_id": "shard0", "chunks": 1, "jumbo": 0}]


def test_many_collections_are_not_counted_again_while_nothing_changes() -> None:
    async def test() -> None:
        reader = Stub(LISTED_MAX)
        for _ in range(3):
            await collections(reader)
        assert reader.counted == LISTED_MAX

    run(test)


def test_unknown_names_evict_nothing() -> None:
    async def test() -> None:
        reader = Stub(3)
        await collections(reader)
        for number in range(2 * ENTRIES_MAX):
            with pytest.raises(UnknownCollection):
                await collection_entry(reader, f"no.such{number}")
        await collections(reader)
        assert reader.counted == 3

    run(test)


def test_the_least_recently_used_results_are_evicted() -> None:
    async def test() -> None:
        reader, read = Stub(), []

        async def of(key: int) -> int:
            async def reading() -> int:
                read.append(key)
                return key

            return await reader.kept(key, 100.0, reading)

        for key in range(ENTRIES_MAX):
            await of(key)
        await of(0)
        await of(ENTRIES_MAX)
        read.clear()
        assert [await of(key) for key in (0, 1, 2)] == [0, 1, 2]
        assert read == [1, 2], "1 was evicted for the newest result, and 2 for 1"

    run(test)


def test_an_action_forgets_results_but_not_those_of_the_newest_version() -> None:
    async def test() -> None:
        reader, read = Stub(), []

        async def reading() -> int:
            read.append(1)
            await asyncio.sleep(0.01)
            return len(read)

        assert await reader.until_changed("bands", 1, reading) == 1
        assert await reader.until_changed("bands", 2, reading) == 1, "it is too early to read again"
        reader.forget()
        assert await reader.until_changed("bands", 1, reading) == 1
        assert await reader.until_changed("bands", 2, reading) == 2

    run(test)


def test_a_read_that_fails_slowly_is_not_repeated_at_once() -> None:
    async def test() -> None:
        reader, attempts = Stub(), []

        async def reading() -> int:
            attempts.append(1)
            await asyncio.sleep(0.2)
            raise Refused("no answer", is_away=True)

        for _ in range(2):
            with pytest.raises(Refused, match="no answer"):
                await reader.kept("a", 1.0, reading)
        assert len(attempts) == 1
        await asyncio.sleep(0.25)
        with pytest.raises(Refused):
            await reader.kept("a", 1.0, reading)
        assert len(attempts) == 2

    run(test)


async def hanging() -> int:
    await asyncio.sleep(3600)
    return 1


def test_a_part_that_hangs_has_a_reason_and_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PART_SECONDS_MAX", 0.2)

    async def test() -> None:
        reader, refusals = Stub(), list[str]()
        async with asyncio.timeout(0.35):
            for _ in range(2):
                assert await partly(reader, "a", 0.0, hanging, 0, refusals) == 0
        assert len(refusals) == 1

    run(test)


def test_one_shard_that_hangs_does_not_hide_the_sizes_of_other_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardwright.console.collections.PART_SECONDS_MAX", 0.2)

    class Frozen(Stub):
        async def command(self, command: Mapping[str, Any], db: str = "admin", *, seconds_max: float = 0) -> Document:
            del db, seconds_max
            return {"size": 7} if command["min"]["a"] % 2 else {"size": await hanging()}

    async def test() -> None:
        chunks = [{"min": {"a": n}, "max": {"a": n + 1}, "shard": f"shard{n % 2}"} for n in range(20)]
        async with asyncio.timeout(1):
            found = await chunk_sizes(Frozen(), "db.c", {"a": 1}, chunks)
        assert list(found.values()) == [7] * 10

    run(test)


class Routers(Reader):
    """A reader whose driver no longer regards all routers as such."""

    def __init__(self, serving: set[str], away: set[str], answer: Callable[[], Awaitable[Document]]) -> None:
        nodes = {(name, 1) for name in serving}
        servers = dict.fromkeys(nodes | {(name, 1) for name in away})
        description = SimpleNamespace(server_descriptions=lambda: servers)
        super().__init__(cast("Any", SimpleNamespace(nodes=frozenset(nodes), topology_description=description)))
        self.answer = answer

    async def command(self, command: Mapping[str, Any], db: str = "admin", *, seconds_max: float = 0) -> Document:
        del command, db, seconds_max
        return await self.answer()


async def answers() -> Document:
    return {"ok": 1}


def test_routers_without_a_reply_are_named() -> None:
    async def test() -> None:
        only = module._only_router

        async def one_is_away() -> Document:
            if only.get() == ("b", 1):
                raise Refused("no answer", is_away=True)
            return {"ok": 1}

        reader = Routers({"a", "b"}, {"c"}, one_is_away)
        for _ in range(2):
            refusals = ["other"]
            assert await of_routers(reader, "log", 5.0, {"getLog": "global"}, refusals) == {"a:1": {"ok": 1}}
            assert [each.partition(":1 did")[0] for each in refusals] == ["other", "router b", "router c"]
        complete: list[str] = []
        await of_routers(Routers({"a", "b"}, set(), answers), "log", 5.0, {"getLog": "global"}, complete)
        assert complete == []

    run(test)
