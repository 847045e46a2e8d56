"""Reads while a shard does not answer or has been removed, on a cluster of their own."""

from collections.abc import Iterator
from typing import Any

import bson
import pytest
from pymongo.errors import ExecutionTimeout, OperationFailure

from tests.local_cluster import Client, RunningCluster, running_cluster

DB = "reads_without_a_shard"
STOPPED = "shard1.0.mongod"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    """A cluster with ``ranged``: 0 to 99 on ``shard0``, 100 to 199 on ``shard1``."""
    with running_cluster(tmp_path_factory.mktemp("cluster")) as running:
        with running.client() as client:
            client.admin.command({"enableSharding": DB, "primaryShard": "shard0"})
            client.admin.command({"shardCollection": f"{DB}.ranged", "key": {"k": 1}})
            client.admin.command({"split": f"{DB}.ranged", "middle": {"k": 100}})
            client.admin.command({"moveRange": f"{DB}.ranged", "min": {"k": 100}, "toShard": "shard1"})
            client[DB].ranged.insert_many([{"_id": n, "k": n, "pad": "x" * 1000} for n in range(200)])
        yield running


@pytest.fixture
def client(cluster: RunningCluster) -> Iterator[Client]:
    with cluster.client(retryReads=False) as connected:
        yield connected


@pytest.fixture
def _without_answers(cluster: RunningCluster) -> Iterator[None]:
    """The mongod of ``shard1`` is suspended, without notice to any process."""
    cluster.kill(STOPPED, "STOP")
    try:
        yield
    finally:
        cluster.kill(STOPPED, "CONT")


@pytest.mark.usefixtures("_without_answers")
class TestSlowShard:
    def test_the_other_shard_answers_as_ever(self, client: Client) -> None:
        assert client[DB].ranged.find_one({"k": 5}) is not None
        assert client[DB].ranged.count_documents({"k": {"$lt": 50}}) == 50

    @pytest.mark.parametrize(
        "command",
        [
            {"find": "ranged"},
            {"find": "ranged", "filter": {"k": 150}},
            {"count": "ranged", "query": {"k": {"$gte": 0}}},
            {"distinct": "ranged", "key": "k"},
            {"aggregate": "ranged", "pipeline": [{"$match": {}}], "cursor": {}},
            {"explain": {"find": "ranged"}},
        ],
    )
    def test_a_deadline_holds_whoever_does_not_answer(self, client: Client, command: dict[str, Any]) -> None:
        with pytest.raises(ExecutionTimeout):
            client[DB].command({**command, "maxTimeMS": 300})

    @pytest.mark.parametrize("sort", [{}, {"k": 1}])
    def test_partial_results_come_within_the_deadline(self, client: Client, sort: dict[str, int]) -> None:
        command = {"find": "ranged", "sort": sort, "allowPartialResults": True, "maxTimeMS": 800, "batchSize": 500}
        cursor = client[DB].command(command)["cursor"]
        assert sorted(document["k"] for document in cursor["firstBatch"]) == list(range(100))
        assert (cursor["partialResultsReturned"], cursor["id"]) == (True, 0)

    def test_nothing_is_a_partial_result_too(self, client: Client) -> None:
        command = {"find": "ranged", "filter": {"k": 150}, "allowPartialResults": True, "maxTimeMS": 400}
        cursor = client[DB].command(command)["cursor"]
        assert (cursor["firstBatch"], cursor["partialResultsReturned"], cursor["id"]) == ([], True, 0)


def test_a_cursor_ends_with_an_error_that_names_the_shard_that_went_away(
    cluster: RunningCluster, client: Client
) -> None:
    db = client[DB]
    whole = db.command({"find": "ranged", "batchSize": 2})["cursor"]
    partial = db.command({"find": "ranged", "batchSize": 2, "allowPartialResults": True})["cursor"]
    cluster.kill("shard1.0.shardd")
    try:
        get_more = {"getMore": bson.Int64(whole["id"]), "collection": "ranged", "batchSize": 500}
        with pytest.raises(OperationFailure, match="shard1") as failed:
            db.command(dict(get_more))
        assert failed.value.code == 6
        with pytest.raises(OperationFailure) as ended:
            db.command(dict(get_more))
        assert ended.value.code == 43

        reply = db.command({**get_more, "getMore": bson.Int64(partial["id"])})["cursor"]
        # the remaining 98 of one shard, and 2 of the other that the router already held
        assert (len(reply["nextBatch"]), reply["partialResultsReturned"], reply["id"]) == (100, True, 0)
    finally:
        cluster.restart("shard1.0.shardd")
    assert len(list(db.ranged.find())) == 200
