"""The shards of an operation, as shown by ``explain``."""

import pytest
from pymongo.database import Database
from pymongo.errors import OperationFailure

from shardwright.wire.rawbson import BINARY, STRING, decode_document, element, from_elements, raw_document
from tests.integration.raw_client import raw_client
from tests.integration.sharded import LOWER, UPPER, Document, Documents
from tests.local_cluster import RunningCluster

COUNT = 100


@pytest.fixture
def filled(ranged: Documents) -> Documents:
    ranged.insert_many({"_id": n, "key": n * 10} for n in range(COUNT))
    return ranged


def explain(database: Database[Document], command: Document, verbosity: str = "queryPlanner") -> Document:
    """The reply to the command."""
    return database.command("explain", command, verbosity=verbosity)


def shards_of(explained: Document) -> list[str]:
    """The shards in the winning plan."""
    return sorted(shard["shardName"] for shard in explained["queryPlanner"]["winningPlan"]["shards"])


@pytest.mark.parametrize(
    ("query", "stage", "shards"),
    [
        ({"filter": {"key": 10}}, "SINGLE_SHARD", [LOWER]),
        ({"filter": {"key": {"$gte": 500}}}, "SINGLE_SHARD", [UPPER]),
        ({"filter": {"key": {"$in": [10, 600]}}}, "SHARD_MERGE", [LOWER, UPPER]),
        ({"filter": {}}, "SHARD_MERGE", [LOWER, UPPER]),
        ({"filter": {}, "sort": {"key": 1}}, "SHARD_MERGE_SORT", [LOWER, UPPER]),
    ],
)
def test_find(filled: Documents, query: Document, stage: str, shards: list[str]) -> None:
    explained = explain(filled.database, {"find": filled.name, **query})
    assert explained["queryPlanner"]["winningPlan"]["stage"] == stage
    assert shards_of(explained) == shards
    assert explained["command"]["find"] == filled.name
    assert explained["serverInfo"]["version"].startswith("6.0.")


def test_execution_statistics_are_summed(filled: Documents) -> None:
    explained = explain(filled.database, {"find": filled.name, "filter": {"key": {"$gte": 400}}}, "executionStats")
    statistics = explained["executionStats"]
    assert statistics["nReturned"] == 60
    assert statistics["totalDocsExamined"] == 60
    assert sorted(each["shardName"] for each in statistics["executionStages"]["shards"]) == [LOWER, UPPER]


@pytest.mark.parametrize(
    "command",
    [
        {"count": "ranged", "query": {"key": 700}},
        {"distinct": "ranged", "key": "_id", "query": {"key": 700}},
        {"update": "ranged", "updates": [{"q": {"key": 700}, "u": {"$set": {"a": 1}}}]},
        {"delete": "ranged", "deletes": [{"q": {"key": 700}, "limit": 1}]},
        {"findAndModify": "ranged", "query": {"key": 700}, "update": {"$set": {"a": 1}}},
    ],
    ids=lambda command: next(iter(command)),
)
def test_others(filled: Documents, command: Document) -> None:
    explained = explain(filled.database, command)
    assert shards_of(explained) == [UPPER]
    assert filled.count_documents({"a": 1}) == 0
    assert filled.count_documents({}) == COUNT


def test_aggregate_on_one_shard(filled: Documents) -> None:
    pipeline = [{"$match": {"key": 700}}]
    explained = explain(filled.database, {"aggregate": filled.name, "pipeline": pipeline, "cursor": {}})
    assert list(explained["shards"]) == [UPPER]


@pytest.mark.parametrize("pipeline", [[{"$match": {"key": 700}}], [{"$group": {"_id": "$a"}}]], ids=str)
@pytest.mark.parametrize("hint", ["_id_", {"key": 1}, {"$natural": 1}], ids=str)
def test_hint_of_an_aggregation(filled: Documents, pipeline: list[Document], hint: str | Document) -> None:
    """On one shard and on both."""
    command = {"aggregate": filled.name, "pipeline": pipeline, "cursor": {}, "hint": hint}
    explained = explain(filled.database, command)
    assert explained["command"]["hint"] == hint
    scan = {"_id_": ("IXSCAN", "_id_"), "{'key': 1}": ("IXSCAN", "key_1")}.get(str(hint), ("COLLSCAN", None))
    for shard in explained["shards"].values():
        first = shard["stages"][0]["$cursor"] if "stages" in shard else shard
        plan = first["queryPlanner"]["winningPlan"]
        assert scan in _scans(plan.get("queryPlan", plan))


def _scans(plan: Document) -> list[tuple[str, str | None]]:
    """The stages of a plan, each with the index that it reads."""
    return [(plan["stage"], plan.get("indexName")), *(_scans(plan["inputStage"]) if "inputStage" in plan else [])]


def test_explain_of_explain_is_refused(filled: Documents) -> None:
    with pytest.raises(OperationFailure) as caught:
        explain(filled.database, {"explain": {"find": filled.name}})
    assert caught.value.code == 20


@pytest.mark.parametrize("command", ["find", "aggregate"])
def test_bytes_that_client_libraries_cannot_decode(cluster: RunningCluster, filled: Documents, command: str) -> None:
    """Text that is not UTF-8 and old binary data with a wrong length are returned in the plan as they were sent."""
    text = element(b"t", STRING, b"\x04\0\0\0a\xffb\0")
    data = element(b"d", BINARY, b"\x06\0\0\0\x02\x63\0\0\0ab")
    odd = raw_document(from_elements(text + data))
    inner: Document = {"find": filled.name, "filter": odd}
    if command == "aggregate":
        inner = {"aggregate": filled.name, "pipeline": [{"$match": odd}], "cursor": {}}
    with raw_client(cluster.address("router.0")) as client:
        client.send_command({"explain": inner, "verbosity": "queryPlanner"}, db=filled.database.name)
        reply = client.receive()[21:]
    assert decode_document(reply)["ok"] == 1.0
    assert text[3:] in reply
    assert data[3:] in reply
