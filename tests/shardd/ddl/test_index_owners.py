"""Asking the owners of a collection to change its indexes, with shards that are made up."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

import bson
import pytest
import trio

from shardwright.shardd.ddl import index_owners
from shardwright.shardd.ddl.index_owners import IndexOwners, index_lock, raise_outage
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.routing_table import RoutingTable
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from tests.sharding.targeting.placements import split_at

NAMESPACE = Namespace("d", "c")
LOST = {
    "ok": 1.0,
    "writeConcernError": {"code": int(ErrorCode.InterruptedDueToReplStateChange), "errmsg": "stepped down"},
}

Answer = Callable[[str, Mapping[str, Any]], dict[str, Any]]


def table(owners: int) -> RoutingTable:
    """Of a collection that so many shards have parts of: ``s0``, ``s1`` …"""
    return split_at(ShardKeyPattern.from_mapping({"x": 1}), [bson.encode({"x": each}) for each in range(1, owners)])


class FakeContext:
    """As much of a `ShardContext` as finding the owners needs."""

    def __init__(self, *tables: RoutingTable) -> None:
        self._tables = list(tables)

    async def catalog(self) -> "FakeContext":
        return self

    async def read(self, reads: object) -> RoutingTable:
        return self._tables.pop(0)


@pytest.fixture
def answer_with(monkeypatch: pytest.MonkeyPatch) -> Callable[[Answer], None]:
    """Answer for the shards with the results or errors of a function of the shard and the command."""

    def set_answer(answer: Answer) -> None:
        async def send(context: object, shard: str, db: str, command: Mapping[str, Any]) -> dict[str, Any]:
            return answer(shard, command)

        monkeypatch.setattr(index_owners, "send_to_shard", send)

    return set_answer


def run(owners: IndexOwners, ask: Callable[[IndexOwners], Awaitable[Any]]) -> Any:  # noqa: ANN401 - as `ask` returns
    return trio.run(ask, owners)


def test_the_owners_are_found_again_once_one_has_been_removed(answer_with: Callable[[Answer], None]) -> None:
    def answer(shard: str, command: Mapping[str, Any]) -> dict[str, Any]:
        if shard == "s2":
            raise CommandError(ErrorCode.ShardNotFound, "shard s2 not found")
        return {"ok": 1.0}

    answer_with(answer)
    owners = IndexOwners(cast("Any", FakeContext(table(2))), NAMESPACE, table(3))
    outcomes = run(owners, lambda owners: owners.change({"dropIndexes": "c", "index": "a_1"}))
    assert outcomes == {"s0": {"ok": 1.0}, "s1": {"ok": 1.0}}


def test_what_is_not_replicated_counts_as_an_outage(answer_with: Callable[[Answer], None]) -> None:
    answer_with(lambda shard, _: LOST if shard == "s1" else {"ok": 1.0})
    owners = IndexOwners(cast("Any", FakeContext()), NAMESPACE, table(2))
    outcomes = run(owners, lambda owners: owners.change({"dropIndexes": "c", "index": "a_1"}))
    with pytest.raises(CommandError, match="not replicated on shard s1: stepped down"):
        raise_outage(outcomes)
    with pytest.raises(CommandError, match="not replicated on shard s1"):
        run(owners, IndexOwners.lasting_indexes)


@pytest.mark.parametrize("refuses", [False, True])
def test_a_drop_goes_on_until_no_owner_has_the_index(answer_with: Callable[[Answer], None], refuses: bool) -> None:
    has, drops = {"s0": 0, "s1": 3}, 0

    def answer(shard: str, command: Mapping[str, Any]) -> dict[str, Any]:
        nonlocal drops
        if "dropIndexes" in command:
            drops += 1
            if refuses:
                raise CommandError(ErrorCode.CannotDropShardKeyIndex, "no")
            has[shard] -= 1  # until then it comes back in failovers
        indexes = [{"name": "a_1"}] if has[shard] else []
        return {"ok": 1.0, "cursor": {"firstBatch": indexes}}

    answer_with(answer)
    owners = IndexOwners(cast("Any", FakeContext()), NAMESPACE, table(2))
    outcomes = run(owners, lambda owners: owners.drop(lambda _, indexes: {index["name"] for index in indexes}))
    assert list(outcomes) == ["s1"]
    assert drops == (1 if refuses else 3)


def test_locks_have_short_names() -> None:
    first, second = (index_lock(NAMESPACE, "n" * 1_000_000 + end) for end in "ab")
    assert first != second
    assert len(first) < 400
    assert index_lock(NAMESPACE, "a_1") == "index a_1 of d.c"
