"""Users with connections at several processes of one router: the user is the same at each process."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any, Final

import pytest
from bson import Int64

from shardwright.router.cursors.open_cursor import worker_of
from tests.access_control.users import PASSWORD, LogIn
from tests.integration.raw_client import RawClient, raw_client
from tests.integration.waiting import eventually
from tests.local_cluster import Client, RunningCluster, running_cluster

ROLES: Final = [{"role": "read", "db": "shop"}]
_CONNECTIONS_MAX: Final = 40
_FIND: Final = {"find": "goods", "batchSize": 2}


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    """The cluster."""
    directory = tmp_path_factory.mktemp("workers")
    with running_cluster(directory, "--auth", "--workers", "2", "--shards", "1") as cluster, cluster.client() as root:
        root.shop.goods.insert_many([{"a": number} for number in range(50)])
        yield cluster


@pytest.fixture
def root(closed: RunningCluster) -> Iterator[Client]:
    """Somebody who may do everything; the users are new."""
    with closed.client() as client:
        for name in ("ann", "ben"):
            client.admin.command("createUser", name, pwd=PASSWORD, roles=ROLES)
        yield client
        for name in ("ann", "ben"):
            if client.admin.command("usersInfo", name)["users"]:
                client.admin.command("dropUser", name)


def opened(raw: RawClient) -> int:
    """A new cursor without a session."""
    cursor_id: int = raw.command(_FIND, db="shop")["cursor"]["id"]
    return cursor_id


@contextmanager
def at_each_worker(cluster: RunningCluster, user: str) -> Iterator[list[RawClient]]:
    """A connection of a user to each of the two processes."""
    with ExitStack() as connections:
        found: dict[int | None, RawClient] = {}
        for _ in range(_CONNECTIONS_MAX):
            raw = connections.enter_context(raw_client(cluster.address("router.0")))
            LogIn(raw, user).complete()
            found.setdefault(worker_of(opened(raw)), raw)
            if len(found) == 2:
                break
        yield [found[0], found[1]]


def next_batch(raw: RawClient, cursor_id: int) -> tuple[int, str]:
    """The error of a ``getMore``."""
    reply = raw.command({"getMore": Int64(cursor_id), "collection": "goods", "batchSize": 2}, db="shop")
    return reply.get("code", 0), reply.get("errmsg", "").replace(str(cursor_id), "N")


@pytest.mark.usefixtures("root")
def test_a_cursor_is_its_users_at_every_process(closed: RunningCluster) -> None:
    with at_each_worker(closed, "ann") as ann, at_each_worker(closed, "ben") as ben:
        for own in ann:
            cursor_id = opened(own)
            for theirs in ben:
                assert next_batch(theirs, cursor_id) == (13, "cursor id N was not created by the authenticated user")
                killing = {"killCursors": "goods", "cursors": [Int64(cursor_id)]}
                refused = theirs.command(killing, db="shop")
                shown = f'{{ killCursors: "goods", cursors: [ {cursor_id} ], $db: "shop" }}'
                assert refused["errmsg"] == f"not authorized on shop to execute command {shown}"
            for other in ann:
                assert next_batch(other, cursor_id) == (0, "")
            assert ann[0].command(killing, db="shop")["cursorsKilled"] == [cursor_id]


def test_query_stats_add_up_all_processes(closed: RunningCluster, root: Client) -> None:
    asking: dict[str, Any] = {"aggregate": 1, "pipeline": [{"$queryStats": {}}], "cursor": {"batchSize": 1_000}}

    def counted() -> dict[str, int]:
        found = root.admin.command(asking)["cursor"]["firstBatch"]
        return {
            next(iter(each["key"]["queryShape"].get("filter", {})), ""): each["metrics"]["execCount"]
            for each in found
            if each["key"]["queryShape"]["command"] == "find"
        }

    with at_each_worker(closed, "ann") as ann:
        for number, raw in enumerate(ann):
            for value in range(3 + number):
                raw.command({"find": "goods", "filter": {"counted": value}}, db="shop")
        assert counted()["counted"] == 7
        refused = [raw.command(asking) for raw in ann]
        assert [each["code"] for each in refused] == [13, 13]
    grouping = [
        *asking["pipeline"],
        {"$group": {"_id": "$key.queryShape.command", "n": {"$sum": "$metrics.execCount"}}},
    ]
    by_command = {each["_id"]: each["n"] for each in root.admin.aggregate(grouping)}
    assert by_command["find"] >= 7
    assert by_command["insert"] >= 1


@pytest.mark.usefixtures("root")
def test_an_operation_is_its_users_at_every_process(closed: RunningCluster) -> None:
    def shown(raw: RawClient) -> list[dict[str, Any]]:
        pipeline = [{"$currentOp": {"localOps": True, "idleConnections": True}}]
        reply = raw.command({"aggregate": 1, "pipeline": pipeline, "cursor": {}}, db="admin")
        found: list[dict[str, Any]] = reply["cursor"]["firstBatch"]
        return found

    def endless(raw: RawClient) -> list[dict[str, Any]]:
        return [each for each in shown(raw) if each.get("command", {}).get("comment") == "endless"]

    with at_each_worker(closed, "ann") as ann, at_each_worker(closed, "ben") as ben, ThreadPoolExecutor(1) as thread:
        for number in range(2):
            with raw_client(closed.address("router.0")) as working:
                LogIn(working, "ann").complete()
                finding = {"find": "goods", "filter": {"$where": "sleep(600000)"}, "comment": "endless"}
                reply = thread.submit(working.command, finding, db="shop")
                [running] = eventually(lambda: endless(ann[0]), what="it is shown")
                assert [each["opid"] for each in endless(ann[1])] == [running["opid"]]
                killing = {"killOp": 1, "op": running["opid"]}
                for theirs in ben:
                    assert {each["effectiveUsers"][0]["user"] for each in shown(theirs)} == {"ben"}
                    shown_command = f'{{ killOp: 1, op: {running["opid"]}, $db: "admin" }}'
                    text = f"not authorized on admin to execute command {shown_command}"
                    assert theirs.command(killing)["errmsg"] == text
                assert ann[number].command(killing)["ok"] == 1.0
                assert reply.result()["code"] == 11601


def test_a_revoked_role_counts_at_once_at_every_process(closed: RunningCluster, root: Client) -> None:
    with at_each_worker(closed, "ann") as ann:
        cursors = [opened(each) for each in ann]
        root.admin.command("revokeRolesFromUser", "ann", roles=ROLES)
        for each in ann:
            for cursor_id in cursors:
                assert next_batch(each, cursor_id) == (13, "not authorized for getMore with cursor id N")
            assert each.command(_FIND, db="shop")["code"] == 13


def test_a_dropped_user_is_logged_out_at_every_process(closed: RunningCluster, root: Client) -> None:
    with at_each_worker(closed, "ann") as ann:
        root.admin.command("dropUser", "ann")
        root.admin.command("createUser", "ann", pwd=PASSWORD, roles=["root"])
        for each in ann:
            assert each.command(_FIND, db="shop")["errmsg"] == "command find requires authentication"
