"""Collections at the target after DDL events: decisions without servers."""

import asyncio
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, Final

import bson
import pytest
from bson.timestamp import Timestamp
from pymongo.errors import OperationFailure

from shardwright.sync.batches import Batch
from shardwright.sync.changes import Change
from shardwright.sync.copying import Copier
from shardwright.sync.ddl import BUILDS_MAX, Catalog
from shardwright.sync.following import Follower
from shardwright.sync.plan import TTL_NEVER, Collection, Deployment
from shardwright.sync.replication import Filter, Replication
from shardwright.sync.writing import Writer

NS: Final = "shop.items"
FIRST, SECOND, THIRD, FOURTH = (each * 16 for each in (b"1", b"2", b"3", b"4"))
KNOWN: Final = {NS: Collection(NS, uuid=FIRST)}


def fake(**attributes: object) -> Any:  # noqa: ANN401 - a part of a replication
    return SimpleNamespace(**attributes)


class Fakes:
    """A catalog whose target records commands.

    Attributes:
        commands: the commands at the target, without write concerns.
        stored: the changes of the position.
    """

    def __init__(
        self, ours: Mapping[str, Collection] | None = None, theirs: Mapping[str, Collection] | None = None
    ) -> None:
        self.commands: list[dict[str, Any]] = []
        self.stored: list[Mapping[str, Any]] = []
        self.store = fake(id="1", fenced=self._fenced, check_lease=self._nothing, written=Timestamp(1, 1))
        self.target = fake(command=self._command, collections=self._there)
        self.source = fake()
        self.source.listed = self.target.listed = lambda *_, **__: asyncio.sleep(0, [*(ours or {}).values()])
        self.writer = Writer(self.source, self.target, self.store)
        deployments = [Deployment(False, (6, 0), "a set", {**(each or {})}) for each in (ours, theirs)]
        self.catalog = Catalog(
            Replication("mongodb://a", "mongodb://b"), self.source, self.target, self.store, self.writer, deployments
        )
        for each in (ours or {}).values():
            self.catalog.know(each)
        self.copier = Copier(self.source, self.target, self.store, self.writer, [])
        self.follower = Follower(
            self.source, self.store, self.writer, self.catalog, self.copier, Filter(), is_sharded=True
        )

    def present(self, uuid: bytes | None) -> None:
        """Define the present UUID of each collection of the source; None for no collection."""
        self.source.uuid = lambda _: asyncio.sleep(0, uuid)
        self.source.collections = lambda *_, named, **__: asyncio.sleep(
            0,
            [] if uuid is None else [Collection(f"shop.{named}", uuid=uuid, indexes=[{"name": "n", "key": {"n": 1}}])],
        )

    def apply(self, *changes: Change) -> None:
        """Apply changes in a batch each."""

        async def run() -> None:
            for each in changes:
                await self.follower._apply(Batch((each,), 1, b"token", each.time, is_whole=True))

        asyncio.run(run())

    def build(self) -> None:
        """Build the indexes of the applied changes."""

        async def run() -> None:
            building = asyncio.create_task(self.catalog.build_for_ever())
            await self.catalog.wait_built()
            building.cancel()

        asyncio.run(run())

    async def _command(self, _: str, command: Mapping[str, Any]) -> None:
        self.commands.append({name: value for name, value in command.items() if name != "writeConcern"})

    async def _fenced(self, _: str, __: object, changes: Mapping[str, Any], *___: object, **____: object) -> Timestamp:
        self.stored.append(changes)
        return Timestamp(1, 1)

    async def _there(self, *_: object, named: str, **__: object) -> list[Collection]:
        return [Collection(f"shop.{named}")]

    async def _nothing(self, **_: object) -> None:
        """The lease is held."""


def deleted(uuid: bytes, time: int = 2) -> Change:
    return Change("delete", Timestamp(time, 1), b"", NS, key=bson.encode({"_id": time}), uuid=uuid)


def ddl(kind: str, uuid: bytes, time: int = 2, **description: object) -> Change:
    return Change(kind, Timestamp(time, 1), b"", NS, description=description, uuid=uuid)


def expiring(name: str, seconds: int) -> dict[str, Any]:
    return {"v": 2, "name": name, "key": {name: 1}, "expireAfterSeconds": seconds}


@pytest.mark.parametrize("is_merged", [True, False], ids=["merged", "created"])
def test_nothing_expires_at_the_target_before_changes_are_applied(*, is_merged: bool) -> None:
    ours = Collection(NS, uuid=FIRST, indexes=[expiring("seen", 10), expiring("made", 20)])
    theirs = Collection(NS, indexes=[expiring("seen", 30), expiring("made", TTL_NEVER), expiring("own", 40)])
    fakes = Fakes({NS: ours}, {NS: theirs, "shop.other": Collection("shop.other", indexes=[expiring("seen", 10)])})
    if is_merged:
        fakes.writer.merged.add(NS)
    asyncio.run(fakes.catalog.stop_expiry())
    assert fakes.commands == [
        {"collMod": "items", "index": {"name": each, "expireAfterSeconds": TTL_NEVER}}
        for each in (["seen"] if is_merged else ["seen", "own"])
    ]


def test_changes_between_two_reshardings_are_applied_later() -> None:
    fakes = Fakes(KNOWN)
    fakes.present(FOURTH)
    for time, uuid in enumerate((FIRST, SECOND, THIRD), 2):
        assert fakes.follower._placed(deleted(uuid, time)) is not None
    assert fakes.catalog.namespaces == {THIRD: NS}


def test_changes_of_an_earlier_collection_are_left_out() -> None:
    """The plan has listed a collection that was made after the start of the change stream."""
    fakes = Fakes(KNOWN)
    fakes.catalog.listed = Timestamp(5, 1)
    fakes.present(FIRST)
    assert fakes.follower._placed(deleted(SECOND, 5)) is None
    fakes.apply(ddl("drop", SECOND, 6))
    assert fakes.catalog.namespaces == {FIRST: NS}
    assert not fakes.commands


def test_a_verification_that_reads_earlier_changes_again_adopts_nothing() -> None:
    fakes = Fakes({NS: Collection(NS, uuid=SECOND)})
    assert fakes.follower._placed(deleted(FIRST), adopts=False) is not None
    assert fakes.catalog.namespaces == {SECOND: NS}


@pytest.mark.parametrize("later", [None, FOURTH], ids=["gone", "made again"])
def test_a_resharded_collection_is_dropped(later: bytes | None) -> None:
    fakes = Fakes(KNOWN)
    fakes.present(later)
    fakes.apply(ddl("drop", SECOND))
    assert fakes.commands == [{"drop": "items"}]
    assert not fakes.catalog.namespaces
    fakes.apply(ddl("create", THIRD, 3))
    assert fakes.catalog.namespaces == {THIRD: NS}


def test_a_resharded_collection_is_renamed() -> None:
    fakes = Fakes(KNOWN)
    fakes.present(None)
    fakes.apply(ddl("rename", SECOND, to={"db": "shop", "coll": "things"}))
    assert fakes.commands == [{"renameCollection": NS, "to": "shop.things", "dropTarget": True}]
    assert fakes.catalog.namespaces == {SECOND: "shop.things"}


def test_the_event_of_a_resharding_is_followed() -> None:
    fakes = Fakes(KNOWN)
    fakes.present(SECOND)
    fakes.catalog.has_indexes = True
    event = ddl("reshardCollection", FIRST, reshardUUID=SECOND)
    fakes.apply(event, event)
    assert fakes.catalog.namespaces == {SECOND: NS}
    fakes.build()
    assert [next(iter(each)) for each in fakes.commands] == ["createIndexes"]


def test_an_adopted_uuid_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    async def written(*_: object) -> None:
        """The documents are written."""

    monkeypatch.setattr(Writer, "apply", written)
    fakes = Fakes(KNOWN)
    fakes.catalog.stored()
    fakes.apply(deleted(SECOND))
    assert {f"collections.{SECOND.hex()}": NS}.items() <= fakes.stored[0].items()
    stored = len(fakes.stored)
    fakes.apply(deleted(SECOND, 3))
    assert len(fakes.stored) == stored


def test_an_index_that_the_target_cannot_build_yet_does_not_stop_the_others() -> None:
    fakes = Fakes(KNOWN)

    async def command(_: str, command: Mapping[str, Any]) -> None:
        names = [each["name"] for each in command["indexes"]]
        if "place" in names:
            raise OperationFailure("Can't extract geo keys", 16755)
        fakes.commands.append({"createIndexes": names})

    fakes.target.command = command
    wanted = Collection(NS, indexes=[{"name": "place", "key": {"place": "2dsphere"}}, {"name": "n", "key": {"n": 1}}])
    asyncio.run(fakes.catalog._match_indexes(wanted, Collection(NS), builds=True))
    assert fakes.commands == [{"createIndexes": ["n"]}]


def test_events_do_not_wait_for_an_index_build() -> None:
    """The catch-up before a commit does."""
    fakes = Fakes(KNOWN)
    fakes.present(FIRST)
    fakes.catalog.has_indexes = True
    asked, ended = asyncio.Event(), asyncio.Event()

    async def command(database: str, command: Mapping[str, Any]) -> None:
        if "createIndexes" in command:
            asked.set()
            await ended.wait()
        await fakes._command(database, command)

    fakes.target.command = command

    async def run() -> None:
        building = asyncio.create_task(fakes.catalog.build_for_ever())
        await fakes.catalog.apply(ddl("createIndexes", FIRST), fakes.copier)
        await asked.wait()
        built = asyncio.create_task(fakes.catalog.wait_built())
        done, _ = await asyncio.wait((built,), timeout=0.1)
        assert not done
        assert fakes.commands == []
        ended.set()
        await built
        building.cancel()

    asyncio.run(run())
    assert [each["indexes"] for each in fakes.commands] == [[{"name": "n", "key": {"n": 1}}]]


class LongBuilds:
    """Comparisons of collections that last until they are released."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
        self.running: list[str] = []
        self.ended: list[str] = []
        self.most = 0
        self._released = {each: asyncio.Event() for each in names}
        monkeypatch.setattr(Catalog, "_match", lambda _, namespace, **__: self._match(namespace))

    async def wait_for(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition is true."""
        async with asyncio.timeout(10):
            while not condition():  # noqa: ASYNC110 - there is no I/O to wait for
                await asyncio.sleep(0)

    def release(self, name: str) -> None:
        """End a comparison."""
        self._released[name].set()

    async def _match(self, namespace: str) -> None:
        self.running.append(namespace)
        self.most = max(self.most, len(self.running))
        if namespace in self._released:
            await self._released[namespace].wait()
        await asyncio.sleep(0)
        self.running.remove(namespace)
        self.ended.append(namespace)


def test_a_long_index_build_does_not_delay_other_collections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither their builds nor their DDL events. An event of the same collection waits."""
    names = [f"shop.c{each}" for each in range(10)]
    fakes = Fakes({each: Collection(each, uuid=each.encode() * 2) for each in names})
    builds = LongBuilds(monkeypatch, names[0])

    def modified(namespace: str) -> Change:
        return Change("modify", Timestamp(2, 1), b"", namespace, uuid=namespace.encode() * 2)

    async def run() -> None:
        comparing = asyncio.create_task(fakes.catalog.match_all())
        await builds.wait_for(lambda: sorted(builds.ended) == names[1:])
        await fakes.catalog.apply(modified(names[1]), fakes.copier)
        renamed = Change("rename", Timestamp(3, 1), b"", names[2], description={"to": {"db": "shop", "coll": "c0"}})
        waiting = [
            asyncio.create_task(fakes.catalog.apply(each, fakes.copier)) for each in (modified(names[0]), renamed)
        ]
        done, _ = await asyncio.wait(waiting, timeout=0.1)
        assert not done
        builds.release(names[0])
        await asyncio.gather(comparing, *waiting)
        assert builds.ended.count(names[0]) == 2

    asyncio.run(run())
    assert builds.most <= BUILDS_MAX + 1


def test_few_collections_build_indexes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server builds only a few at a time, and one of these is for the indexes of events."""
    names = [f"shop.c{each}" for each in range(10)]
    fakes = Fakes({each: Collection(each) for each in names})
    builds = LongBuilds(monkeypatch, *names)

    async def run() -> None:
        comparing = asyncio.create_task(fakes.catalog.match_all())
        for start in range(len(names) - BUILDS_MAX + 1):
            expected = names[start : start + BUILDS_MAX]
            await builds.wait_for(lambda expected=expected: sorted(builds.running) == expected)  # type: ignore[misc]
            builds.release(names[start])
        for each in names:
            builds.release(each)
        await comparing

    asyncio.run(run())
    assert builds.most == BUILDS_MAX
