"""Reads of several shards at one time."""

from typing import Any

import bson
import pytest
from bson.timestamp import Timestamp

from router.reads.read_concern import at_one_time, is_snapshot
from sharding.timestamps import pack_timestamp
from tests.router.reads.requests import request

NEWEST = Timestamp(100, 5)


def sent(concern: dict[str, Any] | None, newest: Timestamp | None = NEWEST) -> tuple[dict[str, Any], Timestamp | None]:
    """What the shards are sent, and the time that was chosen."""
    found = request({"find": "c", "readConcern": concern} if concern is not None else {"find": "c"})
    body, time = at_one_time(found, found.body, pack_timestamp(newest) if newest else 0)
    return bson.decode(body), time


@pytest.mark.parametrize("concern", [None, {}, {"level": "majority"}, {"afterClusterTime": Timestamp(5, 1)}])
def test_another_level_is_passed_on_as_it_is(concern: dict[str, Any] | None) -> None:
    body, time = sent(concern)
    assert time is None
    assert body.get("readConcern") == concern
    assert "$clusterTime" not in body


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


def test_nothing_is_chosen_where_no_time_is_known() -> None:
    body, time = sent({"level": "snapshot"}, newest=None)
    assert (body["readConcern"], time) == ({"level": "snapshot"}, None)


def test_what_a_snapshot_is() -> None:
    assert is_snapshot(request({"find": "c", "readConcern": {"level": "snapshot"}}))
    assert not is_snapshot(request({"find": "c", "readConcern": {"level": "local"}}))
    assert not is_snapshot(request({"find": "c"}))
