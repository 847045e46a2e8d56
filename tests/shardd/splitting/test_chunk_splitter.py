"""One split of a chunk, while the collection becomes another one."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import pairwise
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

import bson
import pytest
import trio
from bson.max_key import MaxKey
from bson.min_key import MinKey
from bson.objectid import ObjectId
from bson.timestamp import Timestamp

from shardwright.shardd.splitting import chunk_splitter
from shardwright.shardd.splitting.chunk_splitter import ChunkSplitter, Outcome
from shardwright.shardd.splitting.growth import SplitSettings
from shardwright.sharding.routing_table import RoutingTable, ShardedCollection
from shardwright.sharding.shard_key import ShardKeyPattern
from tests.sharding.chunk_worlds import COLLECTION, bound, chunk, key

if TYPE_CHECKING:
    from shardwright.shardd.context.shard_context import ShardContext

WHOLE = (key(MinKey()), key(MaxKey()))
RECREATED = replace(COLLECTION, uuid=UUID(int=2), epoch=ObjectId(), timestamp=Timestamp(2000, 1))
RESHARDED = replace(RECREATED, key_pattern=ShardKeyPattern.from_mapping({"y": 1}))


def table_of(collection: ShardedCollection, *bounds: int) -> RoutingTable:
    edges = [MinKey(), *bounds, MaxKey()]
    chunks = [chunk(low, high, "a", 1, at) for at, (low, high) in enumerate(pairwise(edges))]
    return RoutingTable.build(collection, [each.placement for each in chunks])


@dataclass
class World:
    """A shard whose table changes at chosen moments.

    Attributes:
        state: its state of the collection.
        after_search: the collection once split points have been found.
        after_commit: the collection once the split has been committed.
        committed: the split points of all commits.
        offered: the commands to the config servers that offer a chunk.
    """

    state: SimpleNamespace
    after_search: RoutingTable
    after_commit: RoutingTable
    committed: list[Sequence[bytes]] = field(default_factory=list)
    offered: list[dict[str, Any]] = field(default_factory=list)

    async def find(self, collection: str, query: object) -> list[bytes]:
        entry = {
            "_id": "d.c",
            "uuid": bson.Binary.from_uuid(COLLECTION.uuid),
            "lastmodEpoch": COLLECTION.epoch,
            "lastmod": datetime(2026, 1, 1),
            "timestamp": COLLECTION.timestamp,
            "key": {"x": 1},
        }
        return [bson.encode(entry)]

    async def command(self, command: dict[str, Any]) -> None:
        self.offered.append(command)

    @asynccontextmanager
    async def chunk_change(self, namespace: str) -> AsyncIterator[None]:
        yield

    async def split(self, monkeypatch: pytest.MonkeyPatch) -> Outcome:
        """Split the only chunk."""

        async def found(*_: object) -> list[bytes]:
            self.state.table = self.after_search
            return [bound(5), bound(7)]

        async def extreme(*_: object) -> bytes:
            return bound(-5)

        async def commit(*arguments: object, **_: object) -> None:
            self.committed.append(cast("Sequence[bytes]", arguments[3]))
            self.state.table = self.after_commit

        monkeypatch.setattr(chunk_splitter, "find_split_points", found)
        monkeypatch.setattr(chunk_splitter, "extreme_key", extreme)
        monkeypatch.setattr(chunk_splitter, "commit_split", commit)

        async def catalog() -> World:
            return self

        context = SimpleNamespace(
            catalog=catalog,
            mongod=None,
            namespace=lambda _: self.state,
            ddl_locks=SimpleNamespace(chunk_change=self.chunk_change),
        )
        return await ChunkSplitter(cast("ShardContext", context)).split("d.c", WHOLE, SplitSettings())


def world(after_search: RoutingTable | None = None, after_commit: RoutingTable | None = None) -> World:
    whole, parts = table_of(COLLECTION), table_of(COLLECTION, -5, 7)
    state = SimpleNamespace(table=whole, shard="a")
    return World(state, after_search or whole, after_commit or parts)


def test_the_hot_end_is_offered_after_the_split(monkeypatch: pytest.MonkeyPatch) -> None:
    each = world()
    assert trio.run(each.split, monkeypatch) is Outcome.SPLIT
    assert each.committed == [[bound(-5), bound(7)]]
    assert [(offer["uuid"].as_uuid(), bson.encode(offer["max"])) for offer in each.offered] == [
        (COLLECTION.uuid, bound(-5))
    ]


@pytest.mark.parametrize("other", [RECREATED, RESHARDED])
def test_points_of_another_incarnation_are_not_committed(
    monkeypatch: pytest.MonkeyPatch, other: ShardedCollection
) -> None:
    """Its only chunk has the same bounds, but the points are keys of documents that are gone."""
    each = world(after_search=table_of(other))
    assert trio.run(each.split, monkeypatch) is Outcome.OUTDATED
    assert not each.committed
    assert not each.offered


@pytest.mark.parametrize("other", [RECREATED, RESHARDED])
def test_nothing_of_another_incarnation_is_offered(monkeypatch: pytest.MonkeyPatch, other: ShardedCollection) -> None:
    each = world(after_commit=table_of(other))
    assert trio.run(each.split, monkeypatch) is Outcome.SPLIT
    assert not each.offered


def test_a_hot_end_that_has_moved_meanwhile_is_not_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    each = world()
    each.after_commit = RoutingTable.build(
        COLLECTION,
        [each.placement for each in (chunk(MinKey(), -5, "b", 2, 0), chunk(-5, MaxKey(), "a", 2, 1))],
    )
    assert trio.run(each.split, monkeypatch) is Outcome.SPLIT
    assert not each.offered
