"""Thousands of collections."""

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, ClassVar, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.sync.copying import Copier
from shardwright.sync.ddl import Catalog
from shardwright.sync.ends import REQUESTS_MAX
from shardwright.sync.plan import Collection
from shardwright.sync.replication import Replication
from shardwright.sync.rounds import Round
from tests.sampling import many
from tests.sync.running import Ends, contents, run_sync
from tests.sync.writers import DATABASE

COUNT: Final = 1000


class Range(dict[str, Any]):
    """A range that counts how often its fields are read."""

    reads: ClassVar[Counter[str]] = Counter()

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401 - any field
        self.reads[name] += 1
        return super().__getitem__(name)


def test_the_copy_looks_at_each_range_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if one of the first ranges is the last to be copied."""
    others_are_done = asyncio.Event()
    pieces: list[str] = []

    async def copy(self: Copier, chosen: dict[str, Any]) -> None:
        pieces.append(chosen["_id"])
        assert not self.is_done
        if len(pieces) == COUNT:
            others_are_done.set()
        if chosen["_id"] == "1":
            await others_are_done.wait()
        chosen["done"] = True

    async def run() -> None:
        ranges: list[Any] = [Range(_id=str(each), ns=f"db.c{each}", done=False) for each in range(COUNT)]
        parts: Any = SimpleNamespace()
        copier = Copier(parts, parts, parts, parts, ranges)
        await copier.run()
        assert copier.is_done
        assert sorted(pieces) == sorted(each["_id"] for each in ranges)
        copier.add([Range(_id="gone", ns="db.c2", done=False), Range(_id="added", ns="db.c1", done=False)])
        assert not copier.is_done
        assert len(copier.drop("db.c2")) == 2
        await copier.run()
        assert copier.is_done
        assert pieces[COUNT:] == ["added"]

    monkeypatch.setattr(Copier, "_piece", copy)
    Range.reads.clear()
    asyncio.run(run())
    assert Range.reads["done"] < 20 * COUNT


class Names(dict[str, None]):
    """Namespaces that count how often all of them are read."""

    reads = 0

    def __iter__(self) -> Iterator[str]:
        self.reads += 1
        return super().__iter__()


def test_a_round_looks_at_all_collections_only_at_its_ends() -> None:
    names, current, passed = Names({f"db.c{each:04}": None for each in range(COUNT)}), Round(), list[str]()
    while (found := current.next(names)) is not None:
        current.passed()
        passed.append(found)
    assert passed == sorted(names)
    assert names.reads < 5


STEPS: Final = st.lists(st.tuples(st.integers(0, 5), st.sampled_from([None, "db.a", "db.b", "db.c"])), max_size=30)


@given(STEPS, STEPS)
def test_changes_of_the_stored_collections_lead_to_the_present_ones(before: list[Any], after: list[Any]) -> None:
    """Each step drops a collection or renames it."""
    parts: Any = SimpleNamespace(merged=set())
    catalog = Catalog(Replication("mongodb://a", "mongodb://b"), parts, parts, parts, parts, [parts, parts])

    def change(steps: list[Any]) -> None:
        for number, namespace in steps:
            catalog.namespaces.pop(bytes([number]), None)
            if namespace is not None:
                catalog.namespaces[bytes([number])] = namespace

    change(before)
    stored = catalog.stored()["collections"]
    for steps in (after[::2], after[1::2], []):
        change(steps)
        fields, removed = catalog.changed()
        assert not steps or len(fields) + len(removed) <= len(steps) + 1
        stored |= {name.partition(".")[2]: each for name, each in fields.items() if name != "merged"}
        for name in removed:
            del stored[name.partition(".")[2]]
        assert stored == {uuid.hex(): namespace for uuid, namespace in catalog.namespaces.items()}


def test_comparisons_read_the_indexes_of_some_collections_and_of_changed_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = {f"db.c{each:04}": Collection(f"db.c{each:04}") for each in range(10)}
    matched: list[str] = []

    class Listed:
        async def listed(self, *_: object, **__: object) -> list[Collection]:
            return list(ours.values())

    async def match(self: Catalog, namespace: str, **_: object) -> None:
        matched.append(namespace)

    async def numbers(catalog: Catalog, indexes_max: int | None = None) -> list[int]:
        matched.clear()
        await catalog.match_all(indexes_max)
        return [int(each[-4:]) for each in matched]

    async def run() -> None:
        ends: Any = Listed()
        parts: Any = SimpleNamespace(collections=ours, is_sharded=False)
        catalog = Catalog(Replication("mongodb://a", "mongodb://b"), ends, ends, parts, parts, [parts, parts])
        assert await numbers(catalog) == [*range(10)]
        assert await numbers(catalog, 4) == [0, 1, 2, 3]
        ours["db.c0009"] = Collection("db.c0009", options={"validator": {"a": 1}})
        assert await numbers(catalog, 4) == [4, 5, 6, 7, 9]
        assert await numbers(catalog, 4) == [0, 1, 8, 9]
        del ours["db.c0002"]
        assert await numbers(catalog, 4) == [3, 4, 5, 6]
        assert await numbers(catalog, 40) == [0, 1, *range(3, 10)]

    monkeypatch.setattr(Catalog, "_match", match)
    asyncio.run(run())


def test_collections_are_created_several_at_a_time_and_views_after_them(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"db.c{each:03}" for each in range(100)]
    running, most, created = 0, 0, list[str]()

    async def create(self: Catalog, collection: Collection) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        created.append(collection.namespace)

    async def run() -> None:
        parts: Any = SimpleNamespace()
        catalog = Catalog(Replication("mongodb://a", "mongodb://b"), parts, parts, parts, parts, [parts, parts])
        await catalog.create_all([Collection("db.view", kind="view"), *map(Collection, names)])

    monkeypatch.setattr(Catalog, "create", create)
    asyncio.run(run())
    assert most == REQUESTS_MAX
    assert created == [*names, "db.view"]


@pytest.mark.exhaustive
def test_thousands_of_collections(ends: Ends) -> None:
    """Plan, copy, follow and verify them in a time proportional to their number."""
    count = many(2000, 200)
    database = ends.source[DATABASE]
    for each in range(count):
        database[f"c{each}"].insert_one({"_id": each})
    began = time.monotonic()
    with ends.syncing() as process:
        process.wait_for(lambda progress: progress["canCommit"])
        took = time.monotonic() - began
        process.wait_for(lambda progress: progress["verification"]["complete"])
        print("copied", took, "verified", time.monotonic() - began)
        for each in range(0, count, 10):
            database[f"c{each}"].drop()
            database[f"c{each}"].insert_one({"_id": "again"})
        process.wait_followed(ends.source)
        assert contents(ends.target) == contents(ends.source)
        report = run_sync(ends.directory, "verify", process.id)
        assert report.status == 0, report.output
