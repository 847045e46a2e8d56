"""The newest catalog time that is known, and reads that are at least as new."""

from typing import Any

import bson
import pytest
from bson.timestamp import Timestamp
from hypothesis import given
from hypothesis import strategies as st

from shardwright.sharding.catalog.reads import (
    CatalogRead,
    advance_config_time,
    observe_command,
    observe_read,
    read_after,
)
from shardwright.sharding.clock import VectorClock, VectorTime
from shardwright.sharding.cluster_time import pack_timestamp
from shardwright.wire import rawbson

READ = CatalogRead("config", {"find": "shards", "readConcern": {"level": "majority"}})
TIME = Timestamp(7, 3)
PACKED = pack_timestamp(TIME)


def after_reading(clock: VectorClock, reply: dict[str, Any]) -> VectorTime:
    body = bson.encode(reply)
    observe_read(clock, body, rawbson.index(body))
    return clock.time


def test_a_read_waits_for_the_known_time_and_tells_it_to_a_server_that_has_not_heard_of_it() -> None:
    command = read_after(READ, VectorTime(PACKED, PACKED, 5), 500).command
    assert command["readConcern"] == {"level": "majority", "afterClusterTime": TIME}
    assert command["$clusterTime"]["clusterTime"] == TIME
    assert (command["$configTime"], command["$topologyTime"]) == (TIME, Timestamp(0, 5))
    assert command["maxTimeMS"] == 500
    assert READ.command["readConcern"] == {"level": "majority"}


def test_while_no_time_is_known_a_read_is_only_bounded() -> None:
    assert read_after(READ, VectorTime(), 500).command == {**READ.command, "maxTimeMS": 500}


def test_a_read_may_have_to_be_newer_than_the_config_time() -> None:
    command = read_after(READ, VectorTime(PACKED, PACKED), 500, as_of=PACKED + 1).command
    later = Timestamp(TIME.time, TIME.inc + 1)
    assert command["readConcern"] == {"level": "majority", "afterClusterTime": later}
    assert command["$clusterTime"]["clusterTime"] == later
    assert command["$configTime"] == TIME


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        pytest.param({"operationTime": TIME}, PACKED, id="of a mongod"),
        pytest.param({"$configTime": TIME, "operationTime": Timestamp(8, 1)}, PACKED, id="of a genuine config server"),
        pytest.param({"ok": 1.0}, 0, id="without times"),
    ],
)
def test_reads_tell_the_time(reply: dict[str, Any], expected: int) -> None:
    assert after_reading(VectorClock(), reply).config_time == expected


def test_commands_tell_the_time_only_where_it_is_said() -> None:
    clock = VectorClock()
    observe_command(clock, {"ok": 1.0, "operationTime": Timestamp(9, 1)})
    assert clock.time == VectorTime()
    observe_command(clock, {"ok": 1.0, "$configTime": TIME})
    assert clock.time == VectorTime(PACKED, PACKED)


@given(st.lists(st.integers(0, 2**64 - 1)))
def test_the_config_time_never_goes_back_and_never_passes_the_cluster_time(times: list[int]) -> None:
    clock = VectorClock()
    for count, time in enumerate(times, 1):
        advance_config_time(clock, time)
        assert clock.time.config_time == max(times[:count])
        assert clock.time.cluster_time >= clock.time.config_time
