"""Single processes: direct connections to daemons, routers with several workers, shutdown, metrics and health."""

import json
import os
import signal
from typing import Any

import pytest
from bson.int64 import Int64
from pymongo.errors import AutoReconnect, OperationFailure

from shardwright.mongosh_compat.runner import run_code
from tests.integration.health import http_get
from tests.integration.raw_client import raw_client
from tests.integration.routers import END_SECONDS_MAX, connect_to_all, extra_router
from tests.integration.sharded import LOWER, UPPER, Documents
from tests.integration.waiting import eventually
from tests.local_cluster import Client, RunningCluster, client_of


def test_direct_connection_to_a_shard(cluster: RunningCluster, ranged: Documents) -> None:
    ranged.insert_many({"key": key} for key in (1, 2, 501))
    with cluster.direct("shard0.0.shardd") as client:
        hello = client.admin.command("hello")
        assert hello["setName"] == LOWER
        assert hello["me"] == hello["primary"] == cluster.address("shard0.0.shardd")
        assert hello["hosts"] == [cluster.address("shard0.0.shardd")]
        collection = client[ranged.database.name][ranged.name]
        assert sorted(document["key"] for document in collection.find()) == [1, 2]
        state = client.admin.command("shardingState")
        assert (state["enabled"], state["shardName"]) == (True, LOWER)
        version = client.admin.command("getShardVersion", ranged.full_name)
        assert version["global"].time >= 1
        with client.start_session(causal_consistency=True) as session:
            assert collection.find_one({"key": 1}, session=session) is not None


def test_shard_is_a_replica_set(cluster: RunningCluster, ranged: Documents) -> None:
    """A client that knows one member finds the set, with the daemons' addresses and no mongod's."""
    ranged.insert_one({"key": 501})
    with cluster.direct("shard1.0.shardd", directConnection=False, replicaSet=UPPER) as client:
        assert client[ranged.database.name][ranged.name].count_documents({}) == 1
        assert client.nodes == {("127.0.0.1", int(cluster.address("shard1.0.shardd").rpartition(":")[2]))}


def test_mongosh_on_a_shard(cluster: RunningCluster, ranged: Documents) -> None:
    ranged.insert_many({"key": key} for key in (1, 2, 501))
    uri = cluster.client_uri("shard0.0.shardd", directConnection="true")
    code = f"db.getSiblingDB('{ranged.database.name}').{ranged.name}.countDocuments()"
    assert run_code(uri, code).check().strip() == "2"


def test_cursors_of_a_router_of_several_workers(cluster: RunningCluster, ranged: Documents) -> None:
    """The kernel chooses the worker for each connection; any worker can serve a cursor."""
    ranged.insert_many({"_id": n, "key": n} for n in range(1000))
    with extra_router(cluster, "--workers", "2") as (address, _):
        clients = connect_to_all(address, workers=2, connections=12)
        try:
            database = ranged.database.name
            find = {"find": ranged.name, "sort": {"key": 1}, "batchSize": 10}
            cursor = clients[0].command(find, db=database)["cursor"]
            read = [document["key"] for document in cursor["firstBatch"]]
            for client in clients:
                more = {"getMore": Int64(cursor["id"]), "collection": ranged.name, "batchSize": 10}
                reply = client.command(more, db=database)
                assert reply["ok"] == 1, reply
                read += [document["key"] for document in reply["cursor"]["nextBatch"]]
            assert read == list(range(130))
            killed = clients[-1].command({"killCursors": ranged.name, "cursors": [Int64(cursor["id"])]}, db=database)
            assert killed["cursorsKilled"] == [cursor["id"]]
            for client in clients:
                gone = client.command({"getMore": Int64(cursor["id"]), "collection": ranged.name}, db=database)
                assert gone["code"] == 43
        finally:
            for client in clients:
                client.socket.close()


def test_crashed_worker_is_replaced(cluster: RunningCluster, ranged: Documents) -> None:
    ranged.insert_one({"key": 1})
    with extra_router(cluster, "--workers", "2") as (address, _):
        with raw_client(address) as client:
            victim = int(client.command({"serverStatus": 1})["pid"])
            os.kill(victim, signal.SIGKILL)
            assert client.is_closed_by_server()
        with client_of(address) as client:
            for _ in range(20):
                assert client[ranged.database.name][ranged.name].count_documents({}) == 1


def test_router_shuts_down_at_sigterm(cluster: RunningCluster, ranged: Documents, lower_mongod: Client) -> None:
    """Awaitable hellos are answered at once, running operations may finish, then the process exits with 0."""
    ranged.insert_many({"key": key} for key in range(10))
    with (
        extra_router(cluster) as (address, process),
        raw_client(address) as monitor,
        raw_client(address) as worker,
    ):
        version = monitor.command({"hello": 1})["topologyVersion"]
        monitor.send_command({"hello": 1, "topologyVersion": version, "maxAwaitTimeMS": 30_000})
        slow = {"find": ranged.name, "filter": {"$where": "sleep(500) || true"}}
        worker.send_command(slow, db=ranged.database.name)
        running: list[dict[str, Any]] = [{"$currentOp": {}}, {"$match": {"ns": ranged.full_name, "active": True}}]
        eventually(lambda: list(lower_mongod.admin.aggregate(running)), what="the shard is at work")
        process.send_signal(signal.SIGTERM)
        told = monitor.receive_reply()
        assert (told["ok"], told["code"], told["codeName"]) == (0, 91, "ShutdownInProgress")
        assert told["topologyVersion"]["processId"] == version["processId"]
        assert told["topologyVersion"]["counter"] == version["counter"] + 1
        assert told["remainingQuiesceTimeMillis"] >= 0
        assert len(worker.receive_reply()["cursor"]["firstBatch"]) == 10
        monitor.socket.close()
        worker.socket.close()
        assert process.wait(END_SECONDS_MAX) == 0


MEASURED = ("operations_total{", "operation_duration_seconds_bucket{", "open_connections ", "pool_connections{")
"""Metrics that every daemon has."""


@pytest.mark.parametrize(
    ("name", "measured"),
    [
        ("router.0", ("open_cursors ", "full_refreshes_total ", "stale_config_errors_total ")),
        ("shard0.0.shardd", ("refreshes_total{",)),
        ("config.0.configd", ("catalog_conflicts_total ",)),
    ],
)
def test_health_and_metrics(cluster: RunningCluster, client: Client, name: str, measured: tuple[str, ...]) -> None:
    client.admin.command("listShards")
    address = cluster.metrics[name]
    status, body = http_get(address, "/healthz")
    assert (status, json.loads(body)["status"]) == (200, "ok")
    status, body = http_get(address, "/readyz")
    assert (status, json.loads(body)["status"]) == (200, "ready")
    assert http_get(address, "/nothing")[0] == 404
    status, body = http_get(address, "/metrics")
    assert status == 200
    prefix = f"shardwright_{name.rpartition('.')[2] if name != 'router.0' else 'router'}"
    samples = [line for line in body.splitlines() if line.startswith(prefix)]
    for metric in (*MEASURED, *measured):
        assert any(line.startswith(f"{prefix}_{metric}") for line in samples), f"{metric} is not among {samples[:5]}"
    assert "process_resident_memory_bytes" in body


def test_daemons_use_batch_scheduling(cluster: RunningCluster) -> None:
    for process in cluster.status()["processes"]:
        expected = os.SCHED_OTHER if process["role"] == "mongod" else os.SCHED_BATCH
        assert os.sched_getscheduler(process["pid"]) == expected, process["name"]


def test_metrics_count(cluster: RunningCluster, ranged: Documents) -> None:
    def finds() -> float:
        lines = http_get(cluster.metrics["router.0"], "/metrics")[1].splitlines()
        counts = [line for line in lines if "operations_total{" in line and 'command="find"' in line]
        return sum(float(line.rpartition(" ")[2]) for line in counts if "ok" in line)

    before = finds()
    for _ in range(7):
        ranged.find_one({"key": 1})
    assert finds() == before + 7


def test_slow_operations_are_logged(cluster: RunningCluster, placed: Documents) -> None:
    placed.insert_one({"key": 1})
    list(placed.find({"key": 1, "$where": "sleep(150) || true"}))
    for name, field, expected in (("router.0", "shards", [LOWER]), (f"{LOWER}.0.shardd", "outcome", "ok")):
        entries = [json.loads(line) for line in cluster.log(name).splitlines()]
        slow = [entry for entry in entries if entry["msg"] == "Slow operation" and entry.get("command") == "find"]
        ours = max(
            (entry for entry in slow if entry["namespace"] == placed.full_name), key=lambda entry: entry["duration_ms"]
        )
        assert ours[field] == expected
        assert ours["duration_ms"] >= 150


def test_errors_of_unknown_commands(client: Client) -> None:
    for command in ("noSuchCommand", "_shardsvrDropDatabase", "applyOps"):
        with pytest.raises(OperationFailure) as caught:
            client.admin.command(command)
        assert caught.value.code == 59


def test_connection_is_usable_again_after_the_router_restarts(cluster: RunningCluster, ranged: Documents) -> None:
    ranged.insert_one({"key": 1})
    with cluster.direct("router.1") as client:
        collection = client[ranged.database.name][ranged.name]
        assert collection.find_one({"key": 1}) is not None
        cluster.restart("router.1")
        for _ in range(5):
            try:
                assert collection.find_one({"key": 1}) is not None
            except AutoReconnect as error:
                pytest.fail(f"a retryable read failed: {error}")
