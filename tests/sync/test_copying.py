"""Ranges of collections that are renamed, made again or resharded at the source, and of an interrupted copy."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, Final

import bson
import pytest
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp
from pymongo import InsertOne

from shardwright.sync import preparing
from shardwright.sync.batches import Limits
from shardwright.sync.changes import Change, Value
from shardwright.sync.copying import Copier
from shardwright.sync.ddl import Catalog
from shardwright.sync.plan import Collection
from shardwright.sync.ranges import id_bound
from shardwright.sync.replication import Replication
from shardwright.sync.store import DocumentWrites, Refusal
from shardwright.sync.writing import Writer

OURS: Final = b"1" * 16
OTHER: Final = b"2" * 16
AT: Final = Timestamp(1, 1)


async def done(*_: object, **__: object) -> None:
    """A request without a result."""


def raw(document: dict[str, Any]) -> RawBSONDocument:
    """A document as the driver returns it."""
    return RawBSONDocument(bson.encode(document))


class Documents:
    """A collection of the source, read by its greatest ``_id``."""

    def find(self, *_: object) -> "Documents":
        return self

    sort = limit = find

    async def to_list(self) -> list[RawBSONDocument]:
        return [raw({"_id": "last"})]


class Source:
    """A source of small collections.

    Attributes:
        uuids: the collection that has the name, at one request after the other; the last one stays.
    """

    def __init__(self, *uuids: bytes | None) -> None:
        self.uuids = list(uuids)
        self.advanced = asyncio.Event()

    async def uuid(self, _: str) -> bytes | None:
        return self.uuids.pop(0) if len(self.uuids) > 1 else self.uuids[0]

    async def advance(self) -> Timestamp:
        self.advanced.set()
        return AT

    async def command(self, *_: object) -> dict[str, Any]:
        return {"size": 100, "count": 10}

    def collection(self, _: str) -> Documents:
        return Documents()


def planned(*uuids: bytes | None) -> list[dict[str, Any]]:
    """Plan the copy of a listed collection while its name has these UUIDs."""
    source: Any = Source(*uuids)
    return asyncio.run(preparing._ranges(source, [Collection("db.a", uuid=OURS)], compared=()))


def test_a_range_ends_with_the_present_documents() -> None:
    [found] = planned(OURS)
    assert (found["uuid"], found["high"], found["compares"]) == (OURS, bson.encode({"_id": "last"}), False)


@pytest.mark.parametrize(
    "uuids",
    [(None,), (OTHER,), (OURS, OTHER), (OURS, None)],
    ids=["renamed", "replaced", "replaced while it is read", "renamed while it is read"],
)
def test_a_collection_that_is_renamed_before_its_ranges_are_planned_is_copied(uuids: tuple[bytes | None, ...]) -> None:
    """Its range waits for the event of the rename, and has no bound of another collection."""
    [found] = planned(*uuids)
    assert (found["uuid"], found["low"], found["high"]) == (OURS, None, None)
    assert (found["compares"], found["done"]) == (True, False)


class Replica:
    """A replication with two collections, as a process restores it.

    Attributes:
        ranges: as stored.
        commands: run at the target.
    """

    def __init__(self, *ranges: dict[str, Any], source: Source | None = None) -> None:
        self.ranges = {each["_id"]: each for each in ranges}
        self.commands: list[dict[str, Any]] = []
        store: Any = SimpleNamespace(id="1", fenced=self.fenced, check_lease=done)
        ends: Any = SimpleNamespace(command=self.command, collections=self.collections)
        reads: Any = source
        deployment: Any = SimpleNamespace(is_sharded=False, collections={}, shards={})
        writer = Writer(ends, ends, store)
        self.catalog = Catalog(
            Replication("mongodb://a", "mongodb://b"), ends, ends, store, writer, [deployment, deployment]
        )
        self.catalog.know(Collection("db.a", uuid=OURS))
        self.catalog.know(Collection("db.b", uuid=OTHER))
        self.copier = Copier(reads, ends, store, writer, [{**each} for each in ranges])

    async def fenced(self, _: str, which: dict[str, Any], changes: dict[str, Any]) -> None:
        self.ranges[which["_id"]] |= changes

    async def command(self, _: str, command: dict[str, Any]) -> None:
        self.commands.append(command)

    async def collections(self, database: str, *, named: str, **_: object) -> list[Collection]:
        return [Collection(f"{database}.{named}", uuid=OURS)]

    async def rename(self) -> None:
        """Apply the event by which one collection replaces the other."""
        change = Change("rename", AT, b"", "db.a", description={"to": {"db": "db", "coll": "b"}}, uuid=OURS)
        await self.catalog.apply(change, self.copier)


def a_range(number: str, namespace: str, uuid: bytes, **fields: object) -> dict[str, Any]:
    """A range that is not copied yet."""
    names = {"_id": number, "ns": namespace, "uuid": uuid}
    bounds = {"low": None, "high": None, "position": None}
    return {**names, **bounds, "compares": False, "done": False, "documents": 0, "bytes": 0, **fields}


@pytest.mark.parametrize("renamed", [(), ("1",), ("1", "2")], ids=["none", "one", "all"])
def test_a_rename_that_was_interrupted_is_repeated(renamed: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """The ranges that have the new name already are still copied; the ones of the replaced collection are not."""
    ranges = [a_range(each, "db.b" if each in renamed else "db.a", OURS) for each in ("1", "2")]
    replica = Replica(*ranges, a_range("3", "db.b", OTHER))
    monkeypatch.setattr(Catalog, "_match", done)
    asyncio.run(replica.rename())
    for found in (replica.ranges.values(), replica.copier.ranges):
        left = {each["_id"]: (each["ns"], each["uuid"]) for each in found if not each["done"]}
        assert left == {"1": ("db.b", OURS), "2": ("db.b", OURS)}


def test_a_renamed_range_gets_the_present_uuid(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the repeated event would not recognize it."""
    replica = Replica(a_range("1", "db.a", b"before resharding"))
    monkeypatch.setattr(Catalog, "_match", done)
    asyncio.run(replica.rename())
    assert replica.ranges["1"]["uuid"] == OURS


def copy_piece(source: Source, replica: Replica, *, is_renamed: bool) -> dict[str, Any]:
    """Begin a piece of a collection that has changed, apply the changes, and return its range."""

    async def run() -> None:
        [chosen] = replica.copier.ranges
        copying = asyncio.create_task(replica.copier._piece(chosen))
        await source.advanced.wait()
        if is_renamed:
            await replica.rename()
        await replica.copier.note_applied(AT)
        await copying

    asyncio.run(run())
    assert replica.copier.ranges == [*replica.ranges.values()]
    return replica.ranges["1"]


@pytest.mark.parametrize("is_renamed", [True, False], ids=["applied", "later"])
@pytest.mark.parametrize("uuids", [(None,), (None, OTHER), (OTHER, None)], ids=["gone", "replaced", "gone again"])
def test_the_range_of_a_collection_that_is_gone_waits_for_the_event(
    uuids: tuple[bytes | None, ...], monkeypatch: pytest.MonkeyPatch, *, is_renamed: bool
) -> None:
    """A later rename may move it, with everything that is not copied yet."""
    source = Source(*uuids)
    replica = Replica(a_range("1", "db.a", OURS), source=source)
    monkeypatch.setattr(Copier, "_read", done)
    monkeypatch.setattr(Catalog, "_match", done)
    found = copy_piece(source, replica, is_renamed=is_renamed)
    assert not found["done"]
    if is_renamed:
        assert (found["ns"], found["uuid"]) == ("db.b", OURS)
    elif uuids[0] is None:
        assert (found["ns"], found["uuid"]) == ("db.a", OURS)


def test_a_resharded_collection_is_copied_further(monkeypatch: pytest.MonkeyPatch) -> None:
    """The range gets the UUID from before the applied changes, not the one of a later collection."""
    source = Source(b"resharded", b"later")
    replica = Replica(a_range("1", "db.a", OURS), source=source)
    monkeypatch.setattr(Copier, "_read", done)
    assert copy_piece(source, replica, is_renamed=False)["uuid"] == b"resharded"


class Numbers:
    """An end with one collection of documents ``{_id: number}``; also its client and its session."""

    operation_time = None

    def __init__(self, ids: set[int]) -> None:
        self.ids = ids
        self.client = self

    async def uuid(self, _: str) -> bytes:
        return OURS

    def collection(self, _: str) -> "Numbers":
        return self

    def get_database(self, *_: object, **__: object) -> "Numbers":
        return self

    @asynccontextmanager
    async def start_session(self, **_: object) -> AsyncIterator["Numbers"]:
        yield self

    async def command(self, command: Mapping[str, Any], **_: object) -> dict[str, Any]:
        found = [each async for each in self.find(command["filter"])]
        return {"cursor": {"firstBatch": found[: command["limit"]]}}

    async def find(self, range_filter: Mapping[str, Any], **_: object) -> AsyncIterator[RawBSONDocument]:
        conditions = range_filter["$expr"]["$and"] if range_filter else []
        bounds = {name: number_in(bound.raw) for each in conditions for name, (_, bound) in each.items()}
        for each in sorted(self.ids):
            if bounds.get("$gt", each - 1) < each <= bounds.get("$lte", each):
                yield raw({"_id": each})


def number_in(document: bytes) -> int:
    """Return the only value of a document."""
    [found] = bson.decode(document).values()
    return int(found)


class KilledError(Exception):
    """The process has ended."""


def copy(source: set[int], target: set[int], stored: dict[str, Any], *, positions: int | None = None) -> set[int]:
    """Continue the copy of a range, three documents at a time, and return the inserted ones.

    Args:
        positions: number of pieces after which the process ends before it stores another position.
    """
    inserted: set[int] = set()
    stored_positions = 0

    async def fenced(
        _: str, __: object, changes: dict[str, Any], documents: Sequence[DocumentWrites] = (), **___: object
    ) -> None:
        nonlocal stored_positions
        if "position" in changes:
            if stored_positions == positions:
                raise KilledError
            stored_positions += 1
        stored.update(changes)
        for write in (write for each in documents for write in each.writes):
            assert isinstance(write, InsertOne)
            number = number_in(write._doc.raw)
            assert number not in target
            inserted.add(number)
            target.add(number)

    async def reconcile(_: str, ids: Iterable[Value]) -> list[Refusal]:
        for number in (number_in(id_bound(each)) for each in ids):
            target.discard(number)
            target.update({number} & source)
        return []

    ours: Any = Numbers(source)
    theirs: Any = Numbers(target)
    store: Any = SimpleNamespace(fenced=fenced)
    writer: Any = Writer(ours, theirs, store)
    writer.reconcile = reconcile
    copier = Copier(ours, theirs, store, writer, [{**stored}], workers=1, limits=Limits(documents=3))
    asyncio.run(copier.run())
    return inserted


@pytest.mark.parametrize("added", [set(), {33, 34, 35, 41, 42}], ids=["none added", "some added"])
@pytest.mark.parametrize(
    "deleted",
    [set(), {50}, {60}, {40, 50, 60}, {40, 50, 60, 70, 80, 90}],
    ids=["none", "one", "last", "all", "everything"],
)
def test_documents_deleted_before_an_interrupted_copy_inserts_them_are_removed(
    deleted: set[int], added: set[int]
) -> None:
    """The deletions are applied before the inserts, so the next process does not apply them again."""
    source, target = {10, 20, 30, 40, 50, 60, 70, 80, 90}, set[int]()
    stored = a_range("1", "db.a", OURS, high=bson.encode({"_id": 90}))
    with pytest.raises(ExceptionGroup):
        copy(source, target, stored, positions=1)
    assert target == {10, 20, 30, 40, 50, 60}
    source -= deleted
    source |= added
    assert copy(source, target, stored) == {70, 80, 90} - deleted
    assert target == source
    assert stored["done"]
