"""Range deletions of collections that are renamed between two batches, on a real mongod."""

from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import pytest
import trio
from bson.timestamp import Timestamp

from shardwright.daemon.metrics import Metrics
from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.shardd.context.fail_point_names import HANG_AFTER_DOING_DELETION
from shardwright.shardd.local_mongod.local_collections import describe
from shardwright.shardd.local_mongod.reserved_sessions import ReservedSessions
from shardwright.shardd.orphans.range_deletion_tasks import (
    CLEAN_NOW,
    KeyRange,
    KnownDeletion,
    RangeDeletionStore,
    RangeDeletionTask,
)
from shardwright.shardd.range_deleter.range_deleter import RangeDeleter, RangeDeleterParameters
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.routing_table import RoutingTable
from tests.shardd.lone_mongod import LoneMongod
from tests.shardd.orphans.test_orphan_ranges import bound, table

DB = "renamed"
NAME, OLD, NEW = (f"{DB}.{name}" for name in ("c", "old", "new"))
ORPHANS = 10


class Shard:
    """The parts of a shard that the range deleter uses. Its collections are swapped after the first batch.

    Attributes:
        tables: the routing tables by namespace, which the config servers and this shard have.
    """

    def __init__(self, mongod: LocalMongod, new: RoutingTable) -> None:
        self.metrics = Metrics("shardd", frozenset())
        self.mongod = mongod
        self.open_cursors = self.fail_points = self.refresher = self
        self.tables: dict[str, RoutingTable] = {}
        self.deletion: KnownDeletion | None = None
        self._new = new

    def namespace(self, namespace: str) -> Any:  # noqa: ANN401 - a fake of its state
        current = self.tables.get(namespace)
        return SimpleNamespace(namespace=namespace, table=current, wait_earlier_operations=trio.lowlevel.checkpoint)

    def require_identity(self) -> SimpleNamespace:
        return SimpleNamespace(shard_name="me")

    async def wait_closed(self, _namespace: str, *, opened_until: object) -> None:
        await trio.lowlevel.checkpoint()

    async def wait_majority(self) -> None:
        await trio.lowlevel.checkpoint()

    async def current_table(self, state: SimpleNamespace) -> RoutingTable | None:
        await trio.lowlevel.checkpoint()
        return self.tables.get(state.namespace)

    async def catalog(self) -> "Shard":
        await trio.lowlevel.checkpoint()
        return self

    async def find(self, _collection: str, query: Mapping[str, Any]) -> list[RoutingTable]:
        await trio.lowlevel.checkpoint()
        return [each for each in self.tables.values() if each.collection.uuid == query["uuid"].as_uuid()]

    async def hang_while(self, name: str) -> None:
        await trio.lowlevel.checkpoint()
        if name == HANG_AFTER_DOING_DELETION and OLD not in self.tables:
            await self._rename(NAME, OLD)
            await self._rename(NEW, NAME)
            self.tables = {OLD: self.tables[NAME], NAME: self._new}
            assert self.deletion is not None
            self.deletion.task = replace(self.deletion.task, namespace=OLD)

    async def _rename(self, source: str, target: str) -> None:
        await self.mongod.command("admin", {"renameCollection": source, "to": target})


async def create(mongod: LocalMongod, namespace: str, keys: range) -> UUID:
    """Create a collection with an index for the shard key and these keys; return its UUID."""
    name = Namespace.parse(namespace)
    index = {"key": {"a": 1}, "name": "a_1"}
    await mongod.command(name.db, {"createIndexes": name.collection, "indexes": [index]})
    if keys:
        await mongod.write(name.db, {"insert": name.collection, "documents": [{"a": key} for key in keys]})
    created = await describe(mongod, name)
    assert created is not None
    assert created.uuid is not None
    return created.uuid


async def count(mongod: LocalMongod, namespace: str) -> int:
    name = Namespace.parse(namespace)
    return int((await mongod.command(name.db, {"count": name.collection}))["n"])


@pytest.mark.parametrize(("owner", "documents"), [("other", 0), ("me", 0), ("me", 3)])
def test_a_range_deletion_follows_its_collection_when_another_takes_its_name(
    lone: LoneMongod, monkeypatch: pytest.MonkeyPatch, owner: str, documents: int
) -> None:
    """The other collection has the same shard key. Another shard or this one owns the range in it."""

    async def parameters(_mongod: object) -> RangeDeleterParameters:
        await trio.lowlevel.checkpoint()
        return RangeDeleterParameters(0, 2, 0)

    monkeypatch.setattr(RangeDeleterParameters, "read", parameters)

    async def check(mongod: LocalMongod) -> None:
        await mongod.command(DB, {"dropDatabase": 1})
        uuid = await create(mongod, NAME, range(ORPHANS))
        new = table("me", owner, "me", uuid=await create(mongod, NEW, range(documents)))
        shard = Shard(mongod, new)
        shard.tables = {NAME: table("me", "other", "me", uuid=uuid), NEW: new}
        bounds = KeyRange(bound(0), bound(ORPHANS))
        task = RangeDeletionTask(uuid4(), NAME, uuid, "me", bounds, False, CLEAN_NOW, Timestamp(1, 1))
        shard.deletion = KnownDeletion(task)
        store, sessions = RangeDeletionStore(mongod), ReservedSessions(mongod)
        await store.insert(task)
        context: Any = shard
        deleter = RangeDeleter(context, sessions, store, lambda *_: None, trio.lowlevel.checkpoint)
        await deleter.delete(shard.deletion)
        assert await count(mongod, OLD) == 0
        assert await count(mongod, NAME) == documents
        assert await store.load() == []

    lone.run(check)
