"""``shardwright explain`` and ``shardwright lint`` as a user runs them, and lines of captured operations."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest

from shardwright.console.lint import Captured, Report, Shape, Unusable, captured
from shardwright.deploy.cli import main
from tests.console.browser import RunningConsole
from tests.local_cluster import RunningCluster

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

TARGETED: Final = "db.orders.find({ customer: %d })"
SCATTERED: Final = "db.orders.find({ total: %d })"


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


def lint(cluster: RunningCluster, path: Path, *options: str) -> int:
    return main(["lint", "--dir", str(cluster.directory), "--db", "shop", str(path), *options])


@pytest.mark.usefixtures("open_console")
def test_the_budget_decides_the_exit_status(
    cluster: RunningCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "operations.txt"
    lines = [TARGETED % number for number in range(19)] + [SCATTERED % 5, "nonsense", "db.orders.drop()"]
    path.write_text("\n".join(lines), encoding="utf-8")
    assert lint(cluster, path, "--scatter-max", "5%") == 0
    assert "within the budget of 5.0%" in capsys.readouterr().out
    assert lint(cluster, path, "--scatter-max", "4.9%") == 2
    text = capsys.readouterr().out
    assert "20 operations of 2 shapes: 1 scattered (5.0%), 0 refused" in text
    assert 'line 20: { find: "orders", filter: { total: "?" } }' in text
    assert "says nothing about customer" in text
    assert "Add a condition on customer" in text
    assert "2 lines left out" in text
    assert lint(cluster, path, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["operations"], found["scattered"], found["scatterShare"]) == (20, 1, 0.05)
    assert [each["shards"] for each in found["shapes"]] == [2, 1]


@pytest.mark.usefixtures("open_console")
def test_a_refused_operation_is_over_any_budget(
    cluster: RunningCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "operations.txt"
    path.write_text("db.orders.findOneAndUpdate({ total: 4 }, { $set: { a: 1 } })", encoding="utf-8")
    assert lint(cluster, path, "--scatter-max", "100%") == 2
    assert "findAndModify must contain the shard key" in capsys.readouterr().out


@pytest.mark.usefixtures("open_console")
def test_lines_of_a_router_are_reported_as_they_are(
    cluster: RunningCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = {
        "component": "router.commands",
        "msg": "Slow operation",
        "namespace": "shop.orders",
        "shape": {"update": "?", "q": {"total": "?"}, "u": {"$set": {"a": "?"}}},
        "shards": ["shard0", "shard1"],
    }
    path = tmp_path / "router.log"
    path.write_text("\n".join([json.dumps(line)] * 3), encoding="utf-8")
    assert lint(cluster, path, "--json") == 0
    (found,) = json.loads(capsys.readouterr().out)["shapes"]
    assert (found["count"], found["scattered"], found["isRecorded"]) == (3, 3, True)
    assert "says nothing about customer" in found["reason"]


def test_a_file_without_operations_is_an_error(
    cluster: RunningCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "operations.txt"
    path.write_text("", encoding="utf-8")
    assert lint(cluster, path) == 1
    assert "has no operations" in capsys.readouterr().err
    assert lint(cluster, tmp_path / "missing") == 1


def test_explain(cluster: RunningCluster, open_console: RunningConsole, capsys: pytest.CaptureFixture[str]) -> None:
    assert open_console.url
    command = ["explain", "--dir", str(cluster.directory), "--db", "shop"]
    assert main([*command, "db.orders.find({ customer: 150 })"]) == 0
    text = capsys.readouterr().out
    assert "customer: = 150, fixed" in text
    assert "1 of 4 can match" in text
    assert "[100, 200) on shard1" in text
    assert main([*command, "--json", "db.orders.insertOne({ customer: 150 })"]) == 0
    assert json.loads(capsys.readouterr().out)["shards"] == ["shard1"]
    assert main([*command, "db.orders.find({"]) == 1
    assert main([*command, "db.orders.deleteOne({ total: 4 })"]) == 0
    assert "The router refuses it: A single delete" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("scattered", "refused", "scatter_max", "is_within"),
    [(5, 0, 0.05, True), (6, 0, 0.05, False), (0, 1, 1.0, False), (100, 9, None, True), (0, 0, 0.0, True)],
)
def test_budgets(scattered: int, refused: int, scatter_max: float | None, is_within: bool) -> None:
    report = Report([Shape("a.b", "find", "", 1, count=100, scattered=scattered, refused=refused)])
    assert report.is_within(scatter_max) is is_within
