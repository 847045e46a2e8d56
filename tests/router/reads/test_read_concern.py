"""Reads of several shards at one time."""

import time as wall_clock
from dataclasses import replace
from typing import Any

import bson
import pytest
from bson.timestamp import Timestamp

from shardwright.router.reads.read_concern import at_time, is_snapshot, snapshot_time
from shardwright.sharding.chunks import ChunkHistory
from shardwright.sharding.cluster_time import pack_timestamp
from shardwright.sharding.routing_table import RoutingTable
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from tests.router.reads.requests import request
from tests.sharding.chunk_worlds import table_of, whole

NEWEST = Timestamp(100, 5)
MOVED = Timestamp(50, 0)


def table_moved_at(time: Timestamp) -> RoutingTable:
    """A table whose one chunk moved at a time."""
    return table_of(
        [replace(whole(), history=(ChunkHistory(time, whole().shard), ChunkHistory(Timestamp(1, 0), "s0")))]
    )


def sent(
    concern: dict[str, Any] | None,
    newest: Timestamp | None = NEWEST,
    table: RoutingTable | None = None,
) -> tuple[dict[str, Any], Timestamp | None]:
    """The command for the shards, and the time that was chosen."""
    found = request({"find": "c", "readConcern": concern} if concern is not None else {"find": "c"})
    clock = pack_timestamp(newest) if newest else 0
    time = snapshot_time(found, table or table_moved_at(MOVED), clock)
    return bson.decode(at_time(found.body, time, clock)), time


@pytest.mark.parametrize(
    "concern",
    [
        None,
        {},
        {"level": "majority"},
        {"afterClusterTime": Timestamp(5, 1)},
        {"level": "snapshot", "atClusterTime": "now"},
        {"level": "snapshot", "afterClusterTime": 5},
    ],
)
def test_another_level_and_what_is_wrong_are_passed_on_as_they_are(concern: dict[str, Any] | None) -> None:
    body, time = sent(concern)
    assert time is None
    assert body.get("readConcern") == concern
    assert "$clusterTime" not in body


def test_a_time_and_one_before_it_are_refused() -> None:
    with pytest.raises(CommandError) as refused:
        sent({"level": "snapshot", "atClusterTime": Timestamp(5, 1), "afterClusterTime": Timestamp(5, 1)})
    assert refused.value.code == ErrorCode.InvalidOptions


@pytest.mark.parametrize(
    ("concern", "expected"),
    [
        ({}, NEWEST),
        ({"afterClusterTime": Timestamp(90, 1)}, NEWEST),
        ({"afterClusterTime": Timestamp(110, 1)}, Timestamp(110, 1)),
        ({"atClusterTime": Timestamp(90, 1)}, Timestamp(90, 1)),
        ({"atClusterTime": Timestamp(110, 1)}, Timestamp(110, 1)),
    ],
)
def test_all_shards_read_at_one_time_that_they_have_heard_of(concern: dict[str, Any], expected: Timestamp) -> None:
    body, time = sent({"level": "snapshot", **concern})
    assert time == expected
    assert body["readConcern"] == {"level": "snapshot", "atClusterTime": expected}
    assert body["$clusterTime"]["clusterTime"] == max(expected, NEWEST)


@pytest.mark.parametrize("name", ["atClusterTime", "afterClusterTime"])
def test_no_shard_is_told_that_the_future_has_come(name: str) -> None:
    future = Timestamp(int(wall_clock.time()) + 3600, 1)
    body, _ = sent({"level": "snapshot", name: future})
    assert body["readConcern"] == {"level": "snapshot", "atClusterTime": future}
    assert body["$clusterTime"]["clusterTime"] == NEWEST


def test_shards_are_told_of_the_time_of_a_move_even_if_the_clock_of_this_machine_is_slow() -> None:
    ahead = Timestamp(int(wall_clock.time()) + 60, 0)
    body, _ = sent({"level": "snapshot"}, NEWEST, table_moved_at(ahead))
    assert body["$clusterTime"]["clusterTime"] == ahead


@pytest.mark.parametrize("clock", [None, NEWEST])
def test_no_time_is_chosen_before_the_last_move(clock: Timestamp | None) -> None:
    moved = Timestamp(100, 6)
    body, time = sent({"level": "snapshot"}, clock, table_moved_at(moved))
    assert body["readConcern"] == {"level": "snapshot", "atClusterTime": moved}
    assert body["$clusterTime"]["clusterTime"] == time == moved


def test_a_time_that_the_client_names_may_be_before_the_last_move() -> None:
    _, time = sent({"level": "snapshot", "atClusterTime": Timestamp(40, 1)}, NEWEST, table_moved_at(Timestamp(100, 6)))
    assert time == Timestamp(40, 1)


def test_nothing_is_chosen_for_what_is_not_sharded() -> None:
    found = request({"find": "c", "readConcern": {"level": "snapshot"}})
    assert snapshot_time(found, None, pack_timestamp(NEWEST)) is None


def test_what_a_snapshot_is() -> None:
    assert is_snapshot(request({"find": "c", "readConcern": {"level": "snapshot"}}))
    assert not is_snapshot(request({"find": "c", "readConcern": {"level": "local"}}))
    assert not is_snapshot(request({"find": "c"}))
