"""Slow operations by shape from both forms of log lines, and the routes of shapes."""

import asyncio
import json
import logging
from typing import Any, ClassVar, cast

import pytest

from shardwright.console.metrics import Sampler
from shardwright.console.operations import charts, current_operations, operations, route_text, slow_shapes
from shardwright.console.reader import Reader, Refused
from shardwright.console.sessions import Rights
from shardwright.console.shell_syntax import parsed
from shardwright.daemon.log_formats import MongodbFormatter

SHAPE = {"find": "?", "filter": {"customer": "?"}}
FIELDS: dict[str, Any] = {
    "namespace": "shop.orders",
    "remote": "10.0.0.7:5123",
    "command": "find",
    "duration_ms": 250.0,
    "app_name": "till",
    "user": "clerk@admin",
    "shape": SHAPE,
    "query_hash": "0A1B2C3D",
    "shards": ["shard0", "shard1"],
}


def in_mongods_form() -> str:
    record = logging.makeLogRecord({"name": "router.commands", "levelno": logging.INFO, "msg": "Slow operation"})
    record.fields = FIELDS
    return MongodbFormatter().format(record)


@pytest.mark.parametrize(
    "line", [json.dumps({"msg": "Slow operation", **FIELDS}), in_mongods_form()], ids=["ours", "mongod"]
)
def test_slow_operations_are_added_up_by_shape(line: str) -> None:
    [row] = slow_shapes([line, line, '{"msg": "Listening"}', '"Slow '])
    expected = {"ns": "shop.orders", "command": "find", "shape": SHAPE, "hash": "0A1B2C3D", "count": 2}
    assert {name: row[name] for name in expected} == expected
    assert (row["millis"], row["maxMillis"], row["shardsMax"], row["app"]) == (500.0, 250.0, 2, "till")
    assert row["clients"] == [{"app": "till", "host": "10.0.0.7", "user": "clerk@admin"}]


@pytest.mark.parametrize(
    ("shape", "command"),
    [
        (SHAPE, {"find": "orders", "filter": {"customer": "?"}}),
        ({"update": "?", "q": {"a": "?"}}, {"update": "orders", "updates": [{"q": {"a": "?"}, "multi": True}]}),
        ({"delete": "?", "q": {"a": "?"}}, {"delete": "orders", "deletes": [{"q": {"a": "?"}, "limit": 0}]}),
        ({"aggregate": "?", "pipeline": []}, {"aggregate": "orders", "pipeline": [], "cursor": {}}),
        ({"findAndModify": "?", "query": {"a": "?"}}, {"findAndModify": "orders", "query": {"a": "?"}, "remove": True}),
        (
            {"findAndModify": "?", "query": {"a": "?"}, "update": {"a": "?"}},
            {"findAndModify": "orders", "query": {"a": "?"}, "update": {"a": "?"}},
        ),
        ({"find": "?"}, None),
        ({"insert": "?", "x": "?"}, None),
        ({"find": "?", "filter": {"$where": "?"}}, None),
        ({"find": "?", "filter": {"$and": [{"a": "?"}, {"$where": "?"}]}}, None),
        ({"find": "?", "filter": {"a": {"$mod": ["?"]}}}, None),
        ({"find": "?", "filter": {"a": {"$near": {"$geometry": {"type": "?"}}}}}, None),
        ({"find": "?", "filter": {"a": {"$oid": "?"}}}, None),
        ({"find": "?", "filter": "?"}, None),
        (
            {"find": "?", "filter": {"a": {"$in": ["?"], "$gt": "?", "$size": "?"}}, "hint": "?"},
            {"find": "orders", "filter": {"a": {"$in": ["?"], "$gt": "?", "$size": 1}}},
        ),
        ({"distinct": "?", "key": "?", "query": {"a": "?"}}, {"distinct": "orders", "key": "?", "query": {"a": "?"}}),
        (
            {"aggregate": "?", "pipeline": [{"$match": {"a": "?"}}, {"$sample": {"size": "?"}}, {"$limit": "?"}]},
            {
                "aggregate": "orders",
                "pipeline": [{"$match": {"a": "?"}}, {"$sample": {"size": 1}}, {"$limit": 1}],
                "cursor": {},
            },
        ),
        (
            {"findAndModify": "?", "query": {"a": "?"}, "update": {"$inc": {"n": "?"}, "$set": {"b": "?"}}},
            {"findAndModify": "orders", "query": {"a": "?"}, "update": {"$inc": {"n": 1}, "$set": {"b": "?"}}},
        ),
    ],
)
def test_the_route_of_a_shape_is_a_command(shape: dict[str, Any], command: dict[str, Any] | None) -> None:
    text = route_text(next(iter(shape)), "shop.orders", shape)
    assert (None if text is None else parsed(text, "shop").command) == command


def test_shards_with_the_names_of_totals_have_their_own_curves() -> None:
    history = {
        **{"at": [1, 2], "rate": [3, 4], "errors": [0, 1], "p50": [1, 1], "p95": [2, 2], "p99": [3, 3]},
        "shards": {"errors": [7, 7], "operations": [8, 8]},
    }
    assert charts(history)["rates"] == {
        "at": [1, 2],
        "names": ["operations", "errors", "shard errors", "shard operations"],
        "values": [[3, 4], [0, 1], [7, 7], [8, 8]],
    }
    assert charts({**history, "shards": {"shard0": [1, 1]}})["rates"]["names"] == ["operations", "errors", "shard0"]


class Operating(Reader):
    """A reader whose routers answer, and whose shards hang or have a list of operations."""

    pipelines: ClassVar[list[list[dict[str, Any]]]] = []

    async def aggregate(self, *arguments: Any, **_options: object) -> list[dict[str, Any]]:  # noqa: ANN401 - passed on
        self.pipelines.append(arguments[2])
        raise Refused("no answer from a shard", is_away=True)

    async def command(self, *_: object, **_options: object) -> dict[str, Any]:
        return {"host": "r:1"}

    async def of_each_router(self, command: object, refusals: list[str]) -> dict[str, dict[str, Any]]:
        del command
        refusals.append("router b did not answer")
        return {}


def test_a_shard_that_hangs_hides_only_the_current_operations() -> None:
    async def run() -> None:
        reader = Operating(cast("Any", None))
        current = await current_operations(reader, Rights((), (), is_everything=True))
        assert (current["operations"], current["refusals"]) == ([], ["no answer from a shard"])
        found = await operations(reader, Sampler((), 1))
        assert (found["router"]["host"], found["refusals"]) == ("r:1", ["router b did not answer"])

    asyncio.run(run())


def test_the_longest_operations_are_read() -> None:
    reader = Operating(cast("Any", None))
    asyncio.run(current_operations(reader, Rights((), ())))
    assert [next(iter(stage)) for stage in reader.pipelines[-1]] == ["$currentOp", "$match", "$sort", "$limit"]
