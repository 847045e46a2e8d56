"""``$currentOp`` with ``localOps`` shows the operations of a router, in all its processes, and ``killOp`` ends them."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any, Final

import pytest
from bson.binary import Binary
from bson.int64 import Int64

from tests.integration.raw_client import RawClient, raw_client
from tests.integration.routers import connect_to_all, extra_router
from tests.integration.sharded import shard_by_range
from tests.integration.waiting import eventually
from tests.local_cluster import Client, RunningCluster

Command = dict[str, Any]

DB: Final = "local_operations"
ENDLESS: Final = {"$where": "sleep(600000); return true"}
"""A filter whose evaluation ends only when it is interrupted."""

SLEEPING: Final = {
    "$expr": {"$function": {"body": "function() { while (true) { sleep(10); } }", "args": [], "lang": "js"}}
}
"""The same for an aggregation, in which ``$where`` is not allowed."""

SESSION: Final = {"id": Binary(bytes(range(16)), 4)}


@pytest.fixture(scope="module")
def router(cluster: RunningCluster) -> Iterator[Client]:
    with cluster.direct("router.0") as client:
        collection = shard_by_range(client[DB], "sharded", key="k", split_at=0)
        collection.insert_many({"_id": number, "k": number} for number in range(-5, 5))
        client[DB].plain.insert_many({"_id": number} for number in range(10))
        yield client
        client.drop_database(DB)


def local(client: Client, **conditions: object) -> list[Command]:
    """Operations of the router with these fields; ``__`` in a name stands for a dot."""
    match = {name.replace("__", "."): value for name, value in conditions.items()}
    return list(client.admin.aggregate([{"$currentOp": {"localOps": True, "idleCursors": True}}, {"$match": match}]))


@contextmanager
def running(client: RawClient, command: Command) -> Iterator["Future[Command]"]:
    """Run a command in the background; its reply is in the future."""
    with ThreadPoolExecutor(1) as thread:
        yield thread.submit(client.command, command, db=DB)


def on_shards(cluster: RunningCluster, comment: str) -> list[Command]:
    """Return the shards' operations for a comment; batches of a cursor have the cursor's command's comment."""
    with cluster.direct("router.0") as client:
        shown = client.admin.command("currentOp")["inprog"]
    return [
        each
        for each in shown
        if comment in (each.get(where, {}).get("comment") for where in ("command", "originatingCommand"))
        or each.get("cursor", {}).get("originatingCommand", {}).get("comment") == comment
    ]


READS: Final[dict[str, Command]] = {
    "find": {"find": "plain", "filter": ENDLESS},
    "find on all shards": {"find": "sharded", "filter": ENDLESS, "sort": {"k": 1}},
    "aggregate": {"aggregate": "sharded", "pipeline": [{"$match": SLEEPING}, {"$group": {"_id": 1}}], "cursor": {}},
    "count": {"count": "sharded", "query": ENDLESS},
    "with a time limit": {"find": "plain", "filter": ENDLESS, "maxTimeMS": 600_000},
}
WRITES: Final[dict[str, Command]] = {
    "update": {"update": "plain", "updates": [{"q": ENDLESS, "u": {"$set": {"a": 1}}, "multi": True}]},
    "delete on all shards": {"delete": "sharded", "deletes": [{"q": ENDLESS, "limit": 0}]},
}
KINDS: Final = {"find": "query", "update": "update", "delete": "remove"}


@pytest.mark.parametrize("name", [*READS, *WRITES])
def test_operation_is_shown_and_killed(cluster: RunningCluster, router: Client, name: str) -> None:
    command = {**(READS | WRITES)[name], "comment": name, "lsid": SESSION}
    with raw_client(cluster.address("router.0")) as client, running(client, command) as reply:
        [shown] = eventually(lambda: local(router, command__comment=name), what="the operation is shown")
        eventually(lambda: on_shards(cluster, name), what="the operation runs on a shard")
        verb, collection = next(iter(command.items()))
        address, port = client.socket.getsockname()
        assert shown["op"] == KINDS.get(verb, "command")
        assert (shown["ns"], shown["client"]) == (f"{DB}.{collection}", f"{address}:{port}")
        assert (shown["type"], shown["active"], shown["desc"]) == ("op", True, f"conn{shown['connectionId']}")
        assert shown["lsid"]["id"] == SESSION["id"]
        assert isinstance(shown["secs_running"], int)
        assert shown["microsecs_running"] > 0
        assert shown["command"][verb] == collection
        assert router.admin.command("killOp", op=shown["opid"])["info"] == "attempting to kill op"
        interrupted = reply.result()
        assert list(interrupted)[-2:] == ["$clusterTime", "operationTime"]
        assert {name: interrupted[name] for name in list(interrupted)[:-2]} == {
            "ok": 0.0,
            "errmsg": "operation was interrupted",
            "code": 11601,
            "codeName": "Interrupted",
        }
        eventually(lambda: not on_shards(cluster, name), what="the operation has ended on the shards")
        assert client.command({"ping": 1})["ok"] == 1.0
        assert local(router, command__comment=name) == []


def test_operations_are_killed_by_the_key_of_their_client(cluster: RunningCluster, router: Client) -> None:
    key, other = (Binary(bytes([number]) * 16, 4) for number in (1, 2))
    command = {"find": "plain", "filter": ENDLESS, "comment": "key", "clientOperationKey": key}
    with raw_client(cluster.address("router.0")) as client, running(client, command) as reply:
        eventually(lambda: local(router, command__comment="key"), what="the operation is shown")
        router.admin.command("_killOperations", operationKeys=[other])
        assert local(router, command__comment="key")
        router.admin.command("_killOperations", operationKeys=[other, key])
        assert reply.result()["code"] == 11601


def test_operation_on_a_shard_is_shown_and_killed(cluster: RunningCluster, router: Client) -> None:
    """Its number includes the shard; the router's operation fails with the shard's error."""
    command = {"find": "plain", "filter": ENDLESS, "comment": "on a shard"}
    with raw_client(cluster.address("router.0")) as client, running(client, command) as reply:
        [shown] = eventually(lambda: on_shards(cluster, "on a shard"), what="it runs on the shard")
        assert shown["opid"].startswith("shard0:")
        assert "client" not in shown
        assert shown["client_s"]
        [same] = router.admin.aggregate([{"$currentOp": {"allUsers": True}}, {"$match": {"opid": shown["opid"]}}])
        assert (same["shard"], same["client_s"]) == ("shard0", shown["client_s"])
        killed = router.admin.command("killOp", op=shown["opid"])
        assert (killed["shard"], f"{killed['shard']}:{killed['shardid']}") == ("shard0", shown["opid"])
        assert (reply.result()["code"], reply.result()["codeName"]) == (11601, "Interrupted")


def test_idle_cursors_and_connections(router: Client) -> None:
    with router.start_session() as session:
        cursor = router[DB].plain.find({}, batch_size=2, comment="idle", session=session)
        next(cursor)
        [shown] = local(router, type="idleCursor", cursor__originatingCommand__comment="idle")
        assert (shown["ns"], shown["lsid"]["id"]) == (f"{DB}.plain", session.session_id["id"])
        described = shown["cursor"]
        assert (described["cursorId"], described["nBatchesReturned"]) == (cursor.cursor_id, 1)
        assert described["createdDate"] <= described["lastAccessDate"]
        assert (described["noCursorTimeout"], described["tailable"], described["awaitData"]) == (False, False, False)
        cursor.close()
        assert local(router, type="idleCursor", cursor__originatingCommand__comment="idle") == []
    stage = {"$currentOp": {"localOps": True, "allUsers": True, "idleConnections": True}}
    own = list(router.admin.aggregate([stage, {"$match": {"clientMetadata.driver.name": {"$regex": "^PyMongo"}}}]))
    assert {each["active"] for each in own} == {True, False}


def test_cursor_of_a_get_more(cluster: RunningCluster, router: Client) -> None:
    router[DB].command("create", "capped", capped=True, size=4096)
    router[DB].capped.insert_one({})
    with raw_client(cluster.address("router.0")) as client:
        opened = client.command({"find": "capped", "tailable": True, "awaitData": True, "batchSize": 1}, db=DB)
        cursor_id = opened["cursor"]["id"]
        command = {"getMore": Int64(cursor_id), "collection": "capped", "maxTimeMS": 600_000, "comment": "waits"}
        with running(client, command) as reply:
            [shown] = eventually(lambda: local(router, command__comment="waits"), what="the getMore is shown")
            assert (shown["op"], shown["ns"]) == ("getmore", f"{DB}.capped")
            assert (shown["cursor"]["cursorId"], shown["cursor"]["operationUsingCursorId"]) == (
                cursor_id,
                shown["opid"],
            )
            assert (shown["cursor"]["tailable"], shown["cursor"]["awaitData"]) == (True, True)
            assert shown["cursor"]["originatingCommand"]["find"] == "capped"
            router.admin.command("killOp", op=shown["opid"])
            assert reply.result()["code"] == 11601


def test_long_commands_are_truncated_if_asked(cluster: RunningCluster, router: Client) -> None:
    long = {"find": "plain", "filter": {**ENDLESS, "a": {"$ne": "x" * 2000}}, "comment": "long"}
    with raw_client(cluster.address("router.0")) as client, running(client, long):
        [whole] = eventually(lambda: local(router, command__comment="long"), what="it is shown")
        stage = {"$currentOp": {"localOps": True, "truncateOps": True}}
        [truncated] = router.admin.aggregate([stage, {"$match": {"opid": whole["opid"]}}])
        assert whole["command"]["filter"] == long["filter"]
        assert truncated["command"]["$truncated"].startswith('{ find: "plain", filter: { $where: "')
        assert truncated["command"]["comment"] == "long"
        router.admin.command("killOp", op=whole["opid"])


@pytest.mark.parametrize("workers", [2])
def test_operations_of_all_processes(cluster: RunningCluster, router: Client, workers: int) -> None:
    assert router
    with extra_router(cluster, "--workers", str(workers)) as (address, _):
        clients = connect_to_all(address, workers, 8)
        try:
            pids = [client.command({"serverStatus": 1})["pid"] for client in clients]
            first = clients[0]
            other = next(each for each, pid in zip(clients, pids, strict=True) if pid != pids[0])
            assert_shown_and_killed_by(other, first)
        finally:
            for client in clients:
                client.socket.close()


def assert_shown_and_killed_by(other: RawClient, client: RawClient) -> None:
    """An operation is shown by, and killed from, a connection to another process of its router."""
    stage: Command = {"$currentOp": {"localOps": True}}
    wanted: Command = {"$match": {"command.comment": "elsewhere"}}
    question: Command = {"aggregate": 1, "pipeline": [stage, wanted], "cursor": {}}
    alone: Command = {"aggregate": 1, "pipeline": [stage], "cursor": {}}
    with running(client, {"find": "plain", "filter": ENDLESS, "comment": "elsewhere"}) as reply:
        [shown] = eventually(lambda: other.command(question)["cursor"]["firstBatch"], what="it is shown")
        numbers = [each["opid"] for each in other.command(alone)["cursor"]["firstBatch"]]
        assert shown["opid"] in numbers
        assert len(set(numbers)) == len(numbers)
        assert other.command({"killOp": 1, "op": shown["opid"]})["ok"] == 1.0
        assert reply.result()["code"] == 11601


@pytest.mark.parametrize(
    ("db", "value"),
    [
        *((db, value) for db in ("admin", DB) for value in (1, {"localOps": 1}, {"localOps": True, "allUsers": 1})),
        ("admin", {"localOps": True, "unknown": True}),
        (DB, {}),
    ],
)
def test_refusals(cluster: RunningCluster, router: Client, db: str, value: object) -> None:
    command: Command = {"aggregate": 1, "pipeline": [{"$currentOp": value}], "cursor": {}}
    with raw_client(cluster.address("router.0")) as ours, raw_client(cluster.address("config.0.mongod")) as theirs:
        replies = [client.command(command, db=db) for client in (ours, theirs)]
    first, second = ({name: reply[name] for name in ("ok", "code", "codeName", "errmsg")} for reply in replies)
    assert first == second


def test_operations_with_long_comments_are_shown(cluster: RunningCluster, router: Client) -> None:
    """Though they do not fit into one document."""
    with ExitStack() as stack:
        clients = [stack.enter_context(raw_client(cluster.address("router.0"))) for _ in range(2)]
        for client, letter in zip(clients, "ab", strict=True):
            command = {"find": "plain", "filter": ENDLESS, "comment": letter * 9_000_000}
            stack.enter_context(running(client, command))
        try:
            eventually(lambda: len(local(router, ns=f"{DB}.plain", op="query")) == 2, what="both are shown")
            for stages in ([], [{"$match": {"ns": f"{DB}.plain"}}]):
                shown = list(router.admin.aggregate([{"$currentOp": {"localOps": True}}, *stages]))
                commands = [each["command"] for each in shown if each.get("ns") == f"{DB}.plain"]
                assert [list(each) for each in commands] == [["$truncated"]] * 2
        finally:
            for each in local(router, ns=f"{DB}.plain", op="query"):
                router.admin.command("killOp", op=each["opid"])
