"""Ranges of collections that are renamed, made again or resharded at the source, and of an interrupted copy."""

import asyncio
from types import SimpleNamespace
from typing import Any, Final

import bson
import pytest
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp

from shardwright.sync import preparing
from shardwright.sync.changes import Change
from shardwright.sync.copying import Copier
from shardwright.sync.ddl import Catalog
from shardwright.sync.plan import Collection
from shardwright.sync.replication import Replication
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
        ends: Any = SimpleNamespace(command=self.command)
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
    monkeypatch.setattr(Catalog, "match", done)
    asyncio.run(replica.rename())
    for found in (replica.ranges.values(), replica.copier.ranges):
        left = {each["_id"]: (each["ns"], each["uuid"]) for each in found if not each["done"]}
        assert left == {"1": ("db.b", OURS), "2": ("db.b", OURS)}


def test_a_renamed_range_gets_the_present_uuid(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the repeated event would not recognize it."""
    replica = Replica(a_range("1", "db.a", b"before resharding"))
    monkeypatch.setattr(Catalog, "match", done)
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
    monkeypatch.setattr(Catalog, "match", done)
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
