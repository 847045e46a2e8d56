"""Random splits, merges and migrations, compared with a model that knows nothing of documents and versions."""

from typing import TYPE_CHECKING, Any, ClassVar

import hypothesis.strategies as st
import pytest
from bson.max_key import MaxKey
from bson.min_key import MinKey
from bson.objectid import ObjectId
from hypothesis import HealthCheck, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from shardwright.sharding.catalog.reads import read_routing
from tests.configd.catalog_user import CatalogUser, Sharded
from tests.configd.raw_reads import run_reads

if TYPE_CHECKING:
    from shardwright.sharding.routing_table import RoutingTable

KEYS = 40
LOW, HIGH = MinKey(), MaxKey()


def bound(position: int) -> object:
    """The key at a position: 0 is MinKey, `KEYS` is MaxKey."""
    return LOW if position == 0 else HIGH if position == KEYS else position


class ChunkModel(RuleBasedStateMachine):
    """The shard of each chunk by the position at which it begins."""

    catalog: ClassVar[CatalogUser]

    @initialize()
    def shard_collection(self) -> None:
        self.sharded: Sharded = self.catalog.shard_collection(f"model.c{ObjectId()}")
        self.owners = {0: "a"}
        self.version = (1, 0)
        self.table: RoutingTable | None = None

    @rule(data=st.data())
    def split(self, data: st.DataObject) -> None:
        low, high, shard = self._choose_chunk(data)
        if high - low < 2:
            return
        points = data.draw(st.sets(st.integers(low + 1, high - 1), min_size=1, max_size=4))
        self.catalog.split(self.sharded, bound(low), bound(high), *sorted(points), shard=shard)
        self.owners |= dict.fromkeys(points, shard)
        major, minor = self.version
        self.version = (major, minor + len(points) + 1)

    @precondition(lambda self: len(self.owners) > 1)
    @rule(data=st.data())
    def merge(self, data: st.DataObject) -> None:
        low, high, shard = self._choose_chunk(data)
        begins = [begin for begin in sorted(self.owners) if begin >= high]
        merged = []
        for begin in begins:
            if self.owners[begin] != shard or not data.draw(st.booleans()):
                break
            merged.append(begin)
        if not merged:
            return
        self.catalog.merge(self.sharded, bound(low), bound(self._end_of(merged[-1])), shard=shard)
        for begin in merged:
            del self.owners[begin]
        self.version = (self.version[0], self.version[1] + 1)

    @rule(data=st.data(), part=st.booleans())
    def move(self, data: st.DataObject, part: bool) -> None:
        low, high, source = self._choose_chunk(data)
        target = "b" if source == "a" else "a"
        first, last = low, high
        if part and high - low >= 2:
            first = data.draw(st.integers(low, high - 1))
            last = data.draw(st.integers(first + 1, high))
        others = sum(owner == source for owner in self.owners.values()) - 1
        self.catalog.move(self.sharded, bound(first), bound(last), source, target)
        self.owners[first] = target
        if last < high:
            self.owners[last] = source
        raised = (first > low) + (last < high) + (others > 0)
        self.version = (self.version[0] + 1, raised)

    @invariant()
    def catalog_is_as_modelled(self) -> None:
        chunks = self.catalog.bounds(self.sharded)
        begins = sorted(self.owners)
        ends = [*begins[1:], KEYS]
        expected = [(bound(low), bound(high), self.owners[low]) for low, high in zip(begins, ends, strict=True)]
        assert [(low, high, shard) for low, high, shard, _ in chunks] == expected
        versions = [version for _, _, _, version in chunks]
        assert len(set(versions)) == len(versions)
        assert max(versions) == self.version

    @invariant()
    def refreshed_table_is_as_a_new_one(self) -> None:
        self.table = run_reads(self.catalog.client, read_routing(self.sharded.namespace, self.table))
        new = run_reads(self.catalog.client, read_routing(self.sharded.namespace))
        assert self.table is not None
        assert new is not None
        assert list(self.table.chunks()) == list(new.chunks())
        for shard in ("a", "b"):
            assert self.table.shard_version(shard) == new.shard_version(shard)

    def _choose_chunk(self, data: st.DataObject) -> tuple[int, int, str]:
        low = data.draw(st.sampled_from(sorted(self.owners)))
        return low, self._end_of(low), self.owners[low]

    def _end_of(self, low: int) -> int:
        return min((begin for begin in self.owners if begin > low), default=KEYS)


@pytest.mark.parametrize("examples", [15])
def test_chunks_tile_under_unique_versions(catalog: CatalogUser, examples: int) -> None:
    machine: Any = type("Machine", (ChunkModel,), {"catalog": catalog})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=12,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow],
            print_blob=True,
        ),
    )
