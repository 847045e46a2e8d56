"""Dropping indexes while the config servers cannot be reached for the hosts of the shards in the reply."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import bson
import pytest
import trio
from trio.testing import MockClock

from shardwright.shardd.ddl.drop_indexes import DropIndexes
from shardwright.shardd.ddl.service import CoordinatorService
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.routing_table import RoutingTable
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from tests.shardd.ddl.test_joined_changes import Shard, in_term
from tests.sharding.targeting.placements import split_at

NAMESPACE = Namespace("d", "c")


class IndexedShard(Shard):
    """A shard of a cluster whose list of shards cannot be read the first time.

    Attributes:
        indexes: the indexes of each shard.
    """

    def __init__(self, table: RoutingTable | None) -> None:
        super().__init__()
        self.collections[str(NAMESPACE)] = uuid4()
        self.table = table
        owners = ["this"] if table is None else table.shards
        self.indexes = {shard: ["_id_", "x_1", "a_1"] for shard in owners}
        self.is_unreachable = True

    async def catalog(self) -> SimpleNamespace:
        return SimpleNamespace(**vars(await super().catalog()), shards=self.shards)

    async def shards(self) -> dict[str, Any]:
        await trio.lowlevel.checkpoint()
        if self.is_unreachable:
            self.is_unreachable = False
            raise CommandError(ErrorCode.FailedToSatisfyReadPreference, "no primary")
        return {shard: SimpleNamespace(host=f"{shard}/host:1") for shard in self.indexes}

    async def read(self, reading: Any) -> Any:  # noqa: ANN401 - of any type
        await trio.lowlevel.checkpoint()
        reading.close()
        return self.table

    async def command(self, db: str, command: Mapping[str, Any]) -> dict[str, Any]:
        if "dropIndexes" in command:
            return await self.send(self, "this", db, command)
        return await super().command(db, command)

    async def send(self, _context: object, shard: str, _db: str, command: Mapping[str, Any]) -> dict[str, Any]:
        """Run a command on the mongod of a shard."""
        await trio.lowlevel.checkpoint()
        names = self.indexes[shard]
        if "listIndexes" in command:
            listed = [{"name": each, "key": {each.split("_")[0]: 1}} for each in names]
            return {"cursor": {"id": 0, "firstBatch": listed}, "ok": 1.0}
        if "dropIndexes" in command:
            if command["index"] not in names:
                raise CommandError(ErrorCode.IndexNotFound, f"index not found with name [{command['index']}]")
            names.remove(command["index"])
        return {"ok": 1.0}


async def drop(service: CoordinatorService) -> dict[str, Any]:
    return await service.run(DropIndexes, NAMESPACE, {"index": "a_1"})


async def test_a_drop_on_all_owners_is_not_reported_as_failed_after_it_has_been_made(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    shard = IndexedShard(split_at(ShardKeyPattern.from_mapping({"x": 1}), [bson.encode({"x": 0})]))
    monkeypatch.setattr("shardwright.shardd.ddl.index_owners.send_to_shard", shard.send)

    async def work(service: CoordinatorService, _nursery: trio.Nursery) -> None:
        assert (await drop(service))["raw"].keys() == {f"{each}/host:1" for each in shard.indexes}

    await in_term(shard, work)
    assert all(names == ["_id_", "x_1"] for names in shard.indexes.values())
    assert not shard.is_unreachable


async def test_an_unsharded_drop_that_is_reported_as_failed_has_not_been_made(autojump_clock: MockClock) -> None:
    shard = IndexedShard(None)

    async def work(service: CoordinatorService, _nursery: trio.Nursery) -> None:
        with pytest.raises(CommandError, match="no primary"):
            await drop(service)
        assert "a_1" in shard.indexes["this"]
        assert (await drop(service))["raw"] == {"this/host:1": {"ok": 1.0}}

    await in_term(shard, work)
    assert "a_1" not in shard.indexes["this"]
