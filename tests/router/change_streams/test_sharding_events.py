"""Events without a change that mark the sharding of a collection."""

from types import SimpleNamespace
from typing import Any, cast

import bson
import pytest
import trio
from bson.timestamp import Timestamp

from shardwright.router.change_streams.changelog import ShardingEvents
from shardwright.router.change_streams.merger import Event
from shardwright.sharding.catalog.reads import CatalogReads
from tests.router.change_streams.tokens import token

KEY = {"shardKey": {"a": 1}}


def begun(time: int) -> dict[str, Any]:
    return {
        "what": "shardCollection.start",
        "ns": "d.c",
        "details": {"markedAfter": Timestamp(1, time), "request": {**KEY, "numInitialChunks": time}},
    }


def done(time: int) -> dict[str, Any]:
    return {"what": "shardCollection.end", "ns": "d.c", "details": {"markedUntil": Timestamp(1, time)}}


class FakeCatalog:
    """A changelog, whose queries compare one time."""

    def __init__(self, changelog: list[dict[str, Any]]) -> None:
        self._changelog = changelog
        self.clock = SimpleNamespace(time=SimpleNamespace(cluster_time=1))

    async def read(self, reads: CatalogReads[list[bytes]], *, as_of: int) -> list[bytes]:
        """As `CatalogClient`."""
        assert as_of == 1
        query = next(reads).command
        bound = query["filter"]
        [(path, condition)] = [(path, value) for path, value in bound.items() if path.startswith("details.")]
        name = path.partition(".")[2]
        entries = [each for each in self._changelog if (each["what"], each["ns"]) == (bound["what"], bound["ns"])]
        [(operator, time)] = condition.items()
        is_before = operator == "$lt"
        entries = [each for each in entries if (each["details"][name] < time) is is_before]
        entries = [each for each in entries if each["details"][name] != time]
        entries.sort(key=lambda each: each["details"][name], reverse=query["sort"][path] < 0)
        return [bson.encode(each) for each in entries]


class FakeRouting:
    """Knows whether the collection is sharded."""

    def __init__(self, *, is_sharded: bool) -> None:
        self._table = object() if is_sharded else None

    async def find(self, namespace: str, *, is_sharding_confirmed: bool) -> SimpleNamespace:
        """As `RoutingCache`."""
        assert namespace == "d.c"
        assert is_sharding_confirmed
        return SimpleNamespace(table=self._table)


def shown(
    changelog: list[dict[str, Any]], time: int, *, is_sharded: bool = True, **fields: object
) -> tuple[str, dict[str, Any]]:
    """Kind and description of the event that clients see in place of a ``modify`` event of a time."""
    event = {
        "_id": {"_data": token(time).data},
        "operationType": "modify",
        "ns": {"db": "d", "coll": "c"},
        "operationDescription": {},
        "stateBeforeChange": {},
        **fields,
    }
    sharding = ShardingEvents(cast("Any", FakeCatalog(changelog)), cast("Any", FakeRouting(is_sharded=is_sharded)))
    found = bson.decode(trio.run(sharding.shown, Event("s", token(time), bson.encode(event))).document)
    assert ("stateBeforeChange" in found) is (found["operationType"] == "modify")
    assert {name: found[name] for name in ("_id", "ns")} == {name: event[name] for name in ("_id", "ns")}
    return found["operationType"], found["operationDescription"]


TWICE = [begun(10), done(20), begun(30), done(40)]


@pytest.mark.parametrize(("time", "begun_at"), [(11, 10), (20, 10), (35, 30)])
def test_a_mark_is_between_the_entries_of_the_changelog(time: int, begun_at: int) -> None:
    assert shown(TWICE, time) == ("shardCollection", {**KEY, "numInitialChunks": begun_at})


@pytest.mark.parametrize("time", [5, 10, 21, 30, 41])
def test_what_users_change_is_no_mark(time: int) -> None:
    assert shown(TWICE, time) == ("modify", {})


def test_a_mark_may_be_seen_before_the_last_entry_is_written() -> None:
    assert shown(TWICE[:3], 35)[0] == "shardCollection"
    assert shown(TWICE[:3], 35, is_sharded=False)[0] == "modify", "the collection could not be sharded"


def test_other_events_stay() -> None:
    assert shown(TWICE, 11, operationDescription={"index": {}}) == ("modify", {"index": {}})
