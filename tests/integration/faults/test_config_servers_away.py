"""Config servers that are frozen or dead: no operation that can do without them waits for them."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from http import HTTPStatus
from typing import Final

import pytest
from pymongo import UpdateOne

from tests.access_control.users import PASSWORD, user_of
from tests.integration.health import http_get
from tests.integration.sharded import shard_by_range
from tests.integration.waiting import eventually
from tests.local_cluster import Client
from tests.migration.fault_cluster import CONFIG, FaultCluster, daemon_of, fault_cluster

INTERVAL_SECONDS: Final = 1
"""Maximum age of a router's cached users."""

SECONDS_MAX: Final = 3.0
"""A router that waits for a member that does not answer takes 20 s and more."""

OPTIONS: Final = ("--config-members", "3")
DB: Final = "away"
ROLES: Final = ("readWriteAnyDatabase", "clusterMonitor")

Work = Callable[[], object]


@pytest.fixture(scope="module", params=["closed", "open"])
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultCluster]:
    closed = ("--auth",) if request.param == "closed" else ()
    with fault_cluster(tmp_path_factory.mktemp(request.param), *OPTIONS, *closed) as found:
        root = found.router()
        root.admin.command({"setParameter": 1, "userCacheInvalidationIntervalSecs": INTERVAL_SECONDS})
        collection = shard_by_range(root[DB], "documents", split_at=0)
        collection.insert_many([{"_id": each, "key": each} for each in range(-50, 50)])
        root[DB].plain.insert_many([{"_id": each} for each in range(10)])
        if is_closed(found):
            root.admin.command("createUser", "clerk", pwd=PASSWORD, roles=[*ROLES])
        yield found


def is_closed(cluster: FaultCluster) -> bool:
    return cluster.running.key_file is not None


@contextmanager
def client_in_the_name_of(cluster: FaultCluster, user: str) -> Iterator[Client]:
    """A new connection to the first router, which logs in if the cluster is closed."""
    if is_closed(cluster):
        with user_of(cluster.running, user) as client:
            yield client
    else:
        with cluster.running.direct("router.0") as client:
            yield client


def work_of(cluster: FaultCluster, client: Client, opened: ExitStack) -> dict[str, Work]:
    """Operations on collections that the router knows, and on itself, by name; cursors are opened now.

    Args:
        cluster: the cluster.
        client: of the first router.
        opened: closes the cursors.
    """
    db = client[DB]
    documents = db.documents
    cursors = [opened.enter_context(documents.find(batch_size=2)) for _ in range(2)]
    for cursor in cursors:
        next(cursor)
    stream = opened.enter_context(db.plain.watch(max_await_time_ms=100))

    def in_transaction() -> None:
        with client.start_session() as session, session.start_transaction():
            for key in (-7, 7):
                documents.update_one({"key": key}, {"$inc": {"n": 1}}, session=session)

    def get_more() -> None:
        for cursor in cursors:
            for _ in range(3):
                next(cursor)

    def read_stream() -> None:
        db.plain.update_one({"_id": 0}, {"$inc": {"streamed": 1}})
        stream.try_next()  # which is answered in time, but events may wait, see the test of streams

    def log_in() -> None:
        with client_in_the_name_of(cluster, "clerk") as newcomer:
            newcomer[DB].plain.find_one()

    join = {"$lookup": {"from": "documents", "localField": "_id", "foreignField": "_id", "as": "found"}}
    command = client.admin.command
    return {
        "find one": lambda: documents.find_one({"key": 3}),
        "find all": lambda: list(documents.find().sort("key")),
        "find unsharded": lambda: db.plain.find_one(),
        "insert": lambda: documents.insert_one({"key": 1000}),
        "insert many": lambda: documents.insert_many([{"key": each} for each in (-1000, 1000)]),
        "insert unsharded": lambda: db.plain.insert_one({}),
        "update": lambda: documents.update_one({"key": 4}, {"$inc": {"n": 1}}),
        "update many": lambda: documents.update_many({}, {"$inc": {"n": 1}}),
        "bulk write": lambda: documents.bulk_write([UpdateOne({"key": key}, {"$inc": {"n": 1}}) for key in (-1, 1)]),
        "find and modify": lambda: documents.find_one_and_update({"key": 4}, {"$inc": {"n": 1}}),
        "delete": lambda: documents.delete_one({"key": 1000}),
        "delete many": lambda: documents.delete_many({"key": {"$in": [-1000, 1000]}}),
        "count": lambda: documents.count_documents({}),
        "estimated count": documents.estimated_document_count,
        "distinct": lambda: documents.distinct("key"),
        "aggregate": lambda: list(documents.aggregate([{"$match": {"key": {"$gt": 0}}}])),
        "merged aggregate": lambda: list(documents.aggregate([{"$group": {"_id": "$n", "of": {"$sum": 1}}}])),
        "join": lambda: list(documents.aggregate([{"$limit": 3}, join])),
        "join with unsharded": lambda: list(db.plain.aggregate([{"$limit": 3}, join])),
        "transaction": in_transaction,
        "get more": get_more,
        "change stream": read_stream,
        "kill cursors": lambda: documents.find(batch_size=2).close(),
        "list collections": lambda: list(db.list_collections()),
        "list indexes": lambda: list(documents.list_indexes()),
        "collection statistics": lambda: list(documents.aggregate([{"$collStats": {"count": {}}}])),
        "explain": lambda: db.command("explain", {"find": "documents", "filter": {"key": 1}}),
        "hello": lambda: command("hello"),
        "ping": lambda: command("ping"),
        "server status": lambda: command("serverStatus"),
        "connection status": lambda: command("connectionStatus"),
        "current operations": lambda: list(client.admin.aggregate([{"$currentOp": {}}])),
        "log in": log_in,
    }


FAULTS: Final[Mapping[str, Callable[[list[int]], list[str]]]] = {
    "primary": lambda members: [*both(members[0])],
    "secondary": lambda members: [*both(members[1])],
    "primary and secondary": lambda members: [*both(members[0]), *both(members[1])],
    "all": lambda members: [process for member in members for process in both(member)],
    "daemon of the primary": lambda members: [daemon_of(CONFIG, members[0])],
    "mongod of the primary": lambda members: [f"{CONFIG}.{members[0]}.mongod"],
    "all are killed": lambda members: [process for member in members for process in both(member)],
}
"""The processes that are away, given the members with the primary first."""

SLOW: Final = {"all are killed": pytest.mark.exhaustive}
"""Starting all processes again takes half a minute."""


def both(member: int) -> tuple[str, str]:
    return daemon_of(CONFIG, member), f"{CONFIG}.{member}.mongod"


@contextmanager
def away(cluster: FaultCluster, fault: str) -> Iterator[bool]:
    """Processes of the config servers are frozen or killed during the block; whether one can be read all the same."""
    primary = cluster.primary_index(CONFIG)
    members = [primary, *({0, 1, 2} - {primary})]
    processes = FAULTS[fault](members)
    try:
        with ExitStack() as stack:
            for process in processes:
                if fault == "all are killed":
                    cluster.kill(process)
                else:
                    stack.enter_context(cluster.paused(process))
            yield not fault.startswith("all")
    finally:
        if fault == "all are killed":
            for process in sorted(processes, key=lambda name: name.endswith("configd")):
                cluster.restart(process)
        cluster.primary_index(CONFIG)


def slow_ones(work: Mapping[str, Work]) -> dict[str, float]:
    """Run all, and return the seconds of each that took too long."""
    slow = {}
    for name, each in work.items():
        began = time.monotonic()
        each()
        seconds = time.monotonic() - began
        if seconds > SECONDS_MAX:
            slow[name] = seconds
    return slow


@pytest.mark.matrix(share=0.15)  # one
@pytest.mark.parametrize("fault", [pytest.param(each, marks=SLOW.get(each, ())) for each in FAULTS])
def test_operations_that_need_no_config_server_do_not_wait(cluster: FaultCluster, fault: str) -> None:
    stranger = f"stranger to {fault}"
    if is_closed(cluster):
        cluster.router().admin.command("createUser", stranger, pwd=PASSWORD, roles=[*ROLES])

    def log_in_stranger() -> None:
        with client_in_the_name_of(cluster, stranger) as newcomer:
            newcomer[DB].plain.find_one()

    with client_in_the_name_of(cluster, "clerk") as client, ExitStack() as opened:
        work = work_of(cluster, client, opened)
        assert slow_ones(work) == {}
        with away(cluster, fault) as is_one_readable:
            if is_one_readable:
                assert slow_ones({"log in for the first time": log_in_stranger}) == {}
            assert slow_ones(work) == {}
            time.sleep(2 * INTERVAL_SECONDS)  # what is known of the user is too old now
            assert slow_ones(work) == {}


def test_streams_wait_for_config_servers_and_lose_nothing(cluster: FaultCluster) -> None:
    """Only they know whether there is another shard, which might have had earlier events. A mongos waits as well."""
    with client_in_the_name_of(cluster, "clerk") as client, client[DB].plain.watch(max_await_time_ms=100) as stream:
        plain, found = client[DB].plain, list[str]()

        def insert(name: str) -> None:
            plain.insert_one({"name": name})

        def read(wanted: int) -> bool:
            event = stream.try_next()
            if event is not None:
                found.append(event["fullDocument"]["name"])
            return len(found) == wanted

        insert("before")
        eventually(lambda: read(1), what="the event is in the stream")
        with away(cluster, "primary and secondary"):
            insert("during")
            assert slow_ones({"get more": lambda: read(2)}) == {}
        insert("after")
        eventually(lambda: read(3), what="the events are in the stream")
    assert found == ["before", "during", "after"]


@pytest.mark.exhaustive
def test_a_router_to_which_no_user_can_log_in_is_not_ready(cluster: FaultCluster) -> None:
    def readiness(router: int) -> int:
        return http_get(cluster.running.metrics[f"router.{router}"], "/readyz")[0]

    cluster.running.restart("router.1")  # so that no user has logged in at it
    with client_in_the_name_of(cluster, "clerk"), away(cluster, "all"):
        wanted = HTTPStatus.SERVICE_UNAVAILABLE if is_closed(cluster) else HTTPStatus.OK
        eventually(lambda: readiness(1) == wanted, what="the router that knows no user is not ready")
        assert readiness(0) == HTTPStatus.OK
    eventually(lambda: readiness(1) == HTTPStatus.OK, what="the router is ready again")


@pytest.mark.exhaustive
def test_a_secondary_that_remains_lists_the_databases(cluster: FaultCluster) -> None:
    """It refuses commands that do not state a read preference, and drivers would then discard the router."""
    with client_in_the_name_of(cluster, "clerk") as client:
        expected = client.list_database_names()
        assert DB in expected
        with away(cluster, "primary and secondary"):
            assert client.list_database_names() == expected
            assert client[DB].plain.find_one() is not None
