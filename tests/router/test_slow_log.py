"""Operations that a router logs as slow: by duration, or by a filter, which a mongod applies."""

import json
from collections.abc import Iterator
from typing import Any, Final

import pytest
from pymongo.errors import OperationFailure

from shardwright.router.context.slow_operations import SlowOperations
from tests.integration.waiting import eventually
from tests.local_cluster import Client, RunningCluster, client_of
from tests.router.beside_mongod import Command, run

DB: Final = "slow_log"


def test_operations_are_considered_if_they_are_slow_or_there_is_a_filter() -> None:
    rule = SlowOperations(100)
    assert rule.considered_ms == 100
    assert rule.is_sampled(0.1)
    assert not rule.is_sampled(0.099)
    rule.set_filter("a", b"query")
    rule.change(50, None)
    assert (rule.considered_ms, rule.slow_ms) == (0, 50)
    assert (rule.filter_of("a"), rule.filter_of("b")) == (b"query", None)
    rule.set_filter("a", None)
    rule.set_filter("b", None)
    assert rule.considered_ms == 50
    rule.change(None, 0)
    assert not rule.is_sampled(1)


@pytest.fixture
def filtering(router: Client, plain: Client) -> Iterator[None]:
    """Filters that a test sets are removed."""
    yield
    for client in (router, plain):
        client[DB].command("profile", 0, filter="unset", slowms=100, sampleRate=1.0)


FILTERS: Final[list[Any]] = [
    {},
    {"op": "query", "millis": {"$gte": 3}},
    {"$or": [{"ns": "a.b"}, {"command.comment": "x"}]},
    {"$unknown": 1},
    {"ns": {"$unknown": 1}},
    {"unknown": 1},
    {"$where": "true"},
    {"$text": {"$search": "a"}},
    {"$expr": {"$eq": ["$ns", "a"]}},
    {"$jsonSchema": {}},
    {"ns": {"$near": [0, 0]}},
    {"ns": {"$regex": "("}},
    "unset",
    "other",
    5,
    None,
]


@pytest.mark.usefixtures("filtering")
@pytest.mark.parametrize("level", [0, -1])
def test_filters_are_refused_and_shown_as_by_mongod(router: Client, plain: Client, level: int) -> None:
    for query in FILTERS:
        command: Command = {"profile": level, "filter": query}
        assert run(router, command, DB) == run(plain, command, DB), command
        assert run(router, {"profile": -1}, DB) == run(plain, {"profile": -1}, DB), command


@pytest.mark.usefixtures("filtering")
def test_current_values_are_shown_as_by_mongod(router: Client, plain: Client) -> None:
    commands: list[Command] = [
        {"profile": 0, "slowms": 50, "sampleRate": 0.5},
        {"profile": -1, "slowms": 60, "sampleRate": 0.6},
        {"profile": -1, "filter": {}, "slowms": 70},
        {"profile": -1},
    ]
    for command in commands:
        assert run(router, command, DB) == run(plain, command, DB), command


@pytest.mark.usefixtures("filtering")
def test_a_filter_decides_instead_of_the_duration(cluster: RunningCluster, router: Client) -> None:
    query = {"ns": {"$in": [f"{DB}.wanted", f"{DB}.failing"]}, "op": {"$ne": "insert"}, "command.comment": "logged"}
    router[DB].command("profile", 0, filter=query, slowms=0)
    router[DB].unwanted.find_one(comment="logged")
    router[DB].wanted.insert_one({}, comment="logged")
    router[DB].wanted.find_one(comment="other")
    router[DB].wanted.count_documents({}, comment="logged")
    with pytest.raises(OperationFailure):
        router[DB].failing.find_one({"$unknown": 1}, comment="logged")

    def lines() -> list[str]:
        return [line for line in cluster.log("router.0").splitlines() if "Slow operation" in line and f"{DB}." in line]

    eventually(lambda: any("failing" in line for line in lines()), what="the last operation is logged")
    first, second = lines()
    assert "wanted" in first
    assert "aggregate" in first
    assert "find" in second


@pytest.mark.usefixtures("filtering")
def test_a_slow_line_describes_the_operation_without_its_values(cluster: RunningCluster) -> None:
    with client_of(cluster.address("router.0"), appname="shop") as named:
        named[DB].command("profile", 0, filter={"command.comment": "described"}, slowms=0)
        named[DB].described.insert_many([{"x": 1}, {"x": 2}])
        named[DB].described.find_one({"x": {"$gt": 1234567}}, comment="described")
        list(named[DB].described.find({"x": {"$gt": 0}}, comment="described"))

    def lines() -> list[dict[str, Any]] | None:
        found = [
            json.loads(line)
            for line in cluster.log("router.0").splitlines()
            if "Slow operation" in line and f"{DB}.described" in line
        ]
        return found if len(found) == 2 else None

    first, second = eventually(lines, what="both are logged")
    assert first["app_name"] == second["app_name"] == "shop"
    assert first["shape"] == {"find": "?", "filter": {"x": {"$gt": "?"}}}
    assert first["query_hash"] == second["query_hash"]
    assert {first["documents"], second["documents"]} == {0, 2}
    assert min(first["request_bytes"], first["reply_bytes"]) > 50
    assert ":" in first["remote"]
    assert "1234567" not in json.dumps((first, second))
