"""Lines of captured operations."""

from datetime import UTC, datetime
from typing import Any

import pytest

from shardwright.console.captured import Captured, Unusable, captured

MONGOD = (
    '{"t":{"$date":"2026-11-01T10:00:00.000+00:00"},"s":"I","c":"COMMAND","id":51803,"ctx":"conn1","msg":"Slow query",'
    '"attr":{"type":"command","ns":"shop.orders","command":{"find":"orders","filter":{"at":{"$gt":{"$date":'
    '"2026-01-01T00:00:00Z"}}},"$db":"shop"},"durationMillis":120}}'
)
MONGOD_UPDATE = (
    '{"t":{"$date":"2026-11-01T10:00:00.000+00:00"},"s":"I","c":"WRITE","id":51803,"ctx":"conn1","msg":"Slow query",'
    '"attr":{"type":"update","ns":"shop.orders","command":{"q":{"a":1},"u":{"$set":{"b":2}},"multi":true,'
    '"upsert":false},"planSummary":"COLLSCAN"}}'
)
MONGOD_REMOVE = (
    '{"t":{"$date":"2026-11-01T10:00:00.000+00:00"},"c":"WRITE","id":51803,"msg":"Slow query","attr":{"type":"remove",'
    '"ns":"shop.orders","command":{"q":{"a":1},"limit":1}}}'
)
OWN = (
    '{"t":"2026-11-01T10:00:00.000Z","level":"info","component":"router.commands","msg":"Slow operation","command":'
    '"find","shape":{"find":"?","filter":{"a":"?"}},"namespace":"shop.orders","shards":["shard0","shard1"]}'
)
OWN_AS_MONGOD = (
    '{"t":{"$date":"2026-11-01T10:00:00.000+00:00"},"s":"I","c":"COMMAND","id":51803,"ctx":"conn1","msg":"Slow query",'
    '"attr":{"type":"command","command":"find","queryShape":{"find":"?","filter":{"a":"?"}},"ns":"shop.orders",'
    '"shards":["shard0"]}}'
)


@pytest.mark.parametrize(
    ("line", "db", "command"),
    [
        ("db.orders.find({a: 1})", "test", {"find": "orders", "filter": {"a": 1}}),
        ('{"count": "orders", "query": {}, "$db": "shop"}', "shop", {"count": "orders", "query": {}, "$db": "shop"}),
        ('{"databaseName": "shop", "command": {"count": "orders"}}', "shop", {"count": "orders"}),
        ('{"op": "query", "ns": "shop.orders", "command": {"find": "orders"}}', "shop", {"find": "orders"}),
        (
            MONGOD,
            "shop",
            {"find": "orders", "filter": {"at": {"$gt": datetime(2026, 1, 1, tzinfo=UTC)}}, "$db": "shop"},
        ),
        (
            MONGOD_UPDATE,
            "shop",
            {
                "update": "orders",
                "updates": [{"q": {"a": 1}, "u": {"$set": {"b": 2}}, "multi": True, "upsert": False}],
            },
        ),
        (MONGOD_REMOVE, "shop", {"delete": "orders", "deletes": [{"q": {"a": 1}, "limit": 1}]}),
    ],
)
def test_commands_with_values(line: str, db: str, command: dict[str, Any]) -> None:
    assert captured(line, 7, "test") == Captured(7, db, command, "orders")


@pytest.mark.parametrize(("line", "shards"), [(OWN, ["shard0", "shard1"]), (OWN_AS_MONGOD, ["shard0"])])
def test_lines_of_routers_have_a_shape_and_the_contacted_shards(line: str, shards: list[str]) -> None:
    shape = {"find": "?", "filter": {"a": "?"}}
    assert captured(line, 1, "test") == Captured(1, "shop", {}, "orders", shape, shards)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "nonsense",
        "[1]",
        '{"ping": 1}',
        '{"t": {"$date": "2026-11-01T10:00:00.000+00:00"}, "c": "NETWORK", "id": 22943, "attr": {}}',
        '{"component": "router.service", "msg": "Listening"}',
        '{"id": 51803, "attr": {"type": "command", "ns": "a.b", "command": {"$truncated": "{ find: "}}}',
    ],
)
def test_other_lines_are_left_out(line: str) -> None:
    with pytest.raises(Unusable):
        captured(line, 1, "test")
