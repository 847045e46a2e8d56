"""Requests that arrive while a change for an earlier request of the same kind is in progress."""

from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID, uuid4

import pytest
import trio
from bson.binary import Binary
from bson.int64 import Int64
from bson.timestamp import Timestamp
from trio.testing import MockClock, wait_all_tasks_blocked

from shardwright.shardd.context.ddl_locks import IndexCreations
from shardwright.shardd.ddl.drops import DropDatabase
from shardwright.shardd.ddl.move_primary import CLEAN, MovePrimary
from shardwright.shardd.ddl.rename_collection import UNBLOCK, RenameCollection
from shardwright.shardd.ddl.service import CoordinatorService
from shardwright.shardd.metadata.database_state import DatabaseState
from shardwright.shardd.metadata.namespace_state import NamespaceState, StateTable
from shardwright.sharding.catalog.documents import DatabaseEntry
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.versions import DatabaseVersion
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from tests.shardd.ddl.test_coordinator_ends import FakeShard, NoMigrations

if TYPE_CHECKING:
    from shardwright.shardd.context.shard_context import ShardContext

SOURCE, TARGET = "d.tmp", "d.live"
RENAME = {"to": TARGET, "dropTarget": True, "stayTemp": False}
FIRST, SECOND = (DatabaseVersion(uuid4(), Timestamp(each, 1), 1) for each in (1, 2))


async def done(*_: object, **__: object) -> dict[str, Any]:
    await trio.lowlevel.checkpoint()
    return {}


class Shard(FakeShard):
    """A shard with unsharded collections, and config servers that pause in the last step of a change.

    Attributes:
        collections: the UUIDs of the collections by name.
        entry: the database in the catalog.
        is_last_step: set once the change is in its last step.
        may_end: lets the change end.
    """

    def __init__(self, *documents: dict[str, Any], last_step: str = "") -> None:
        super().__init__(*documents)
        self.collections: dict[str, UUID] = {}
        self.entry = DatabaseEntry("d", "this", FIRST)
        self.is_last_step, self.may_end = trio.Event(), trio.Event()
        self.options = self.views = self
        self.address = "this:1"
        self._last_step = last_step
        self._databases = StateTable(DatabaseState)
        self.namespaces = StateTable(lambda name: NamespaceState(name, "this"))
        self.index_creations = IndexCreations(self._databases)

    def database(self, name: str) -> DatabaseState:
        return self._databases[name]

    def namespace(self, name: str) -> NamespaceState:
        return self.namespaces[name]

    def forget(self) -> None:
        """Do nothing: there are no views."""

    def forget_database(self, name: str) -> None:
        self.database(name).forget()

    async def placement_time(self, _after: object) -> None:
        """Do nothing: nothing is placed."""

    async def catalog(self) -> SimpleNamespace:
        await trio.lowlevel.checkpoint()
        return SimpleNamespace(read=self.read, find=self.find, commit=self.commit, command=self.log)

    async def read(self, reading: Any) -> DatabaseEntry | None:  # noqa: ANN401 - a generator of any type
        await trio.lowlevel.checkpoint()
        is_of_database = reading.__name__ == "read_database"
        reading.close()
        return self.entry if is_of_database else None

    async def find(self, *_: object, **__: object) -> list[bytes]:
        await trio.lowlevel.checkpoint()
        return []

    async def commit(self, command: Mapping[str, Any]) -> dict[str, Any]:
        if "_configsvrCommitDropDatabase" in command:
            self.entry = None
        return await self.step(next(iter(command)))

    async def step(self, name: str) -> dict[str, Any]:
        """Take a step, which pauses if it is the last one."""
        await trio.lowlevel.checkpoint()
        if name == self._last_step:
            self.is_last_step.set()
            await self.may_end.wait()
        return {"ok": 1.0}

    async def log(self, command: Mapping[str, Any], db: str) -> dict[str, Any]:
        return await self.step(command["documents"][0]["what"])

    async def command(self, db: str, command: Mapping[str, Any]) -> dict[str, Any]:
        await trio.lowlevel.checkpoint()
        if "listCollections" in command:
            found = self.collections.get(f"{db}.{command['filter']['name']}")
            info = {"info": {"uuid": found and Binary.from_uuid(found)}, "type": "collection", "options": {}}
            return {"cursor": {"firstBatch": [info] if found else []}}
        if "renameCollection" in command:
            if command["renameCollection"] not in self.collections:
                raise CommandError(ErrorCode.NamespaceNotFound, "Source collection does not exist")
            self.collections[command["to"]] = self.collections.pop(command["renameCollection"])
            return {"ok": 1.0}
        return await super().command(db, command)


Work = Callable[[CoordinatorService, trio.Nursery], Coroutine[Any, Any, None]]


async def in_term(shard: Shard, work: Work) -> None:
    service = CoordinatorService(cast("ShardContext", shard), NoMigrations())
    async with trio.open_nursery() as nursery:
        await service.begin_term(1, nursery)
        with trio.fail_after(60):
            await work(service, nursery)


async def rename(service: CoordinatorService) -> None:
    await service.run(RenameCollection, Namespace.parse(SOURCE), RENAME)


@pytest.mark.parametrize("last_step", ["_configsvrRenameCollectionMetadata", "renameCollection.end"])
async def test_a_rename_of_a_new_collection_does_not_join_one_that_has_been_made(
    last_step: str, autojump_clock: MockClock
) -> None:
    shard = Shard(last_step=last_step)
    shard.collections[SOURCE] = uuid4()

    async def work(service: CoordinatorService, nursery: trio.Nursery) -> None:
        nursery.start_soon(rename, service)
        await shard.is_last_step.wait()
        shard.collections[SOURCE] = new = uuid4()
        nursery.start_soon(rename, service)
        await wait_all_tasks_blocked()
        assert shard.collections[SOURCE] == new
        shard.may_end.set()
        await rename(service)  # joins the second
        assert shard.collections == {TARGET: new}

    await in_term(shard, work)


async def test_a_repeated_request_joins_a_rename_that_has_been_made(autojump_clock: MockClock) -> None:
    """Such as a router's repetition after it has lost the connection."""
    shard = Shard(last_step="_configsvrRenameCollectionMetadata")
    shard.collections[SOURCE] = renamed = uuid4()

    async def work(service: CoordinatorService, nursery: trio.Nursery) -> None:
        nursery.start_soon(rename, service)
        await shard.is_last_step.wait()
        nursery.start_soon(rename, service)
        await wait_all_tasks_blocked()
        shard.may_end.set()

    await in_term(shard, work)
    assert shard.collections == {TARGET: renamed}


@pytest.mark.parametrize("is_new", [True, False])
async def test_a_rename_joins_a_resumed_one_only_if_it_is_the_same(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock, *, is_new: bool
) -> None:
    """The resumed rename of a sharded collection cannot reach another shard, and has unblocked this one."""
    renamed, new = uuid4(), uuid4()
    document = {
        "_id": {"namespace": SOURCE, "operationType": "renameCollection"},
        "phase": UNBLOCK,
        **RENAME,
        "sourceUUID": Binary.from_uuid(renamed),
        "sourceIsSharded": True,
        "targetIsSharded": False,
        "session": {"lsid": {"id": Binary.from_uuid(uuid4())}, "txnNumber": Int64(5)},
    }
    shard = Shard(document, last_step=UNBLOCK)
    shard.collections = {TARGET: renamed} | ({SOURCE: new} if is_new else {})

    async def send(*_: object) -> None:
        await shard.step(UNBLOCK)

    async def no_shards(_: object) -> list[str]:
        await trio.lowlevel.checkpoint()
        return []

    monkeypatch.setattr("shardwright.shardd.ddl.rename_collection.send_to_shards", send)
    monkeypatch.setattr("shardwright.shardd.ddl.rename_collection.all_shard_ids", no_shards)

    async def work(service: CoordinatorService, nursery: trio.Nursery) -> None:
        await shard.is_last_step.wait()
        nursery.start_soon(rename, service)
        await wait_all_tasks_blocked()
        shard.may_end.set()

    await in_term(shard, work)
    assert shard.collections == {TARGET: new if is_new else renamed}


@pytest.mark.parametrize("last_step", ["_configsvrCommitDropDatabase", "dropDatabase"])
async def test_a_drop_of_a_recreated_database_waits_for_the_former_drop(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock, last_step: str
) -> None:
    monkeypatch.setattr("shardwright.shardd.ddl.drops.drop_database_here", done)
    monkeypatch.setattr("shardwright.shardd.ddl.drops.send_to_other_shards", done)
    shard, ended = Shard(last_step=last_step), []

    async def drop(service: CoordinatorService, version: DatabaseVersion) -> None:
        await service.run(DropDatabase, Namespace("d"), {"databaseVersion": version.to_document()})
        ended.append(version)

    async def work(service: CoordinatorService, nursery: trio.Nursery) -> None:
        nursery.start_soon(drop, service, FIRST)
        await shard.is_last_step.wait()
        shard.entry = DatabaseEntry("d", "this", SECOND)
        nursery.start_soon(drop, service, SECOND)
        nursery.start_soon(drop, service, FIRST)  # joins the first
        await wait_all_tasks_blocked()
        assert ended == []
        shard.may_end.set()

    await in_term(shard, work)
    assert ended == [FIRST, FIRST, SECOND]
    assert shard.entry is None


@pytest.mark.parametrize("primary", ["this", "other"])
async def test_a_move_of_a_recreated_database_does_not_join_one_that_has_been_committed(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock, primary: str
) -> None:
    """The earlier one still drops the former collections."""
    document = {
        "_id": {"namespace": "d.", "operationType": "movePrimary"},
        "phase": CLEAN,
        "to": "other",
        "databaseVersion": FIRST.to_document(),
    }
    shard, began = Shard(document, last_step=CLEAN), []

    async def clean(_: object) -> None:
        await shard.step(CLEAN)

    async def begin(_: object) -> bool:
        await trio.lowlevel.checkpoint()
        began.append(shard.may_end.is_set())
        return False

    monkeypatch.setattr(MovePrimary, "_clean", clean)
    monkeypatch.setattr(MovePrimary, "_begin", begin)

    async def work(service: CoordinatorService, nursery: trio.Nursery) -> None:
        await shard.is_last_step.wait()
        shard.entry = DatabaseEntry("d", primary, SECOND)
        nursery.start_soon(partial(service.run, MovePrimary, Namespace("d"), {"to": "other"}))
        await wait_all_tasks_blocked()
        shard.may_end.set()

    await in_term(shard, work)
    assert began == ([True] if primary == "this" else [])
