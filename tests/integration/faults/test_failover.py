"""Shards of three members follow elections while clients write."""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from uuid import uuid4

import pytest
from bson.binary import Binary
from bson.int64 import Int64
from pymongo import WriteConcern
from pymongo.errors import AutoReconnect, OperationFailure

from tests.fail_points import fail_point
from tests.integration.change_streams.test_change_streams import Stream, take
from tests.integration.raw_client import raw_client
from tests.integration.sharded import LOWER, SPLIT_AT, UPPER, Document, Documents
from tests.integration.waiting import eventually
from tests.integration.workload import running_workload
from tests.local_cluster import Client, RunningCluster, running_cluster
from tests.migration.fault_cluster import CONFIG, FaultCluster, daemon_of

MEMBERS = 3


@pytest.fixture(scope="module")
def replicated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    """Two shards of three members each, and as many config servers."""
    members = ("--members", str(MEMBERS), "--config-members", str(MEMBERS))
    with running_cluster(tmp_path_factory.mktemp("replicated"), *members, "--shards", "2") as running:
        yield running


@pytest.fixture
def collection(replicated: RunningCluster) -> Iterator[Documents]:
    """A sharded collection with two chunks, both on the first shard, whose elections these tests are about."""
    with replicated.client() as client:
        client.admin.command("enableSharding", "failover", primaryShard=LOWER)
        client.admin.command("shardCollection", "failover.things", key={"key": 1})
        client.admin.command("split", "failover.things", middle={"key": SPLIT_AT})
        yield client.failover.things
        client.drop_database("failover")


@pytest.fixture
def spread(collection: Documents) -> Documents:
    """The collection with its second chunk on the second shard."""
    collection.database.client.admin.command("moveChunk", collection.full_name, find={"key": SPLIT_AT}, to=UPPER)
    return collection


EVENTS = tuple(number + number % 2 * SPLIT_AT for number in range(40))
"""The keys of documents inserted by tests of change streams, each on another shard than the one before."""

Starts = list[tuple[dict[str, Any], tuple[int, ...]]]
"""Options by which a stream starts, and the events that it is to have."""


def insert(collection: Documents, keys: Iterable[int]) -> None:
    for key in keys:
        collection.insert_one({"_id": key, "key": key})


def keys_of(stream: Stream, count: int) -> list[int]:
    return [event["documentKey"]["key"] for event in take(stream, count, within=60)]


def read_a_part(collection: Documents) -> Starts:
    """Insert the first twenty documents, read the events of ten, and return all ways to continue."""
    with collection.watch(max_await_time_ms=200) as stream:
        insert(collection, EVENTS[:20])
        events = take(stream, 10)
    assert [event["documentKey"]["key"] for event in events] == list(EVENTS[:10])
    last = events[-1]
    return [
        ({"resume_after": last["_id"]}, EVENTS[10:]),
        ({"start_after": last["_id"]}, EVENTS[10:]),
        ({"start_at_operation_time": last["clusterTime"]}, EVENTS[9:]),
        ({"resume_after": events[0]["_id"]}, EVENTS[1:]),
    ]


def check_starts(collection: Documents, starts: Starts) -> None:
    """Every event comes once and in order, whichever way a stream starts."""
    for options, expected in starts:
        with collection.watch(**options, max_await_time_ms=200) as stream:
            assert keys_of(stream, len(expected)) == list(expected), options
            assert stream.try_next() is None


def primary(cluster: RunningCluster) -> int | None:
    """Index of the member that reports itself as primary."""
    for index in range(MEMBERS):
        with cluster.direct(f"{LOWER}.{index}.shardd", serverSelectionTimeoutMS=2000) as client:
            try:
                if client.admin.command("hello")["isWritablePrimary"]:
                    return index
            except (AutoReconnect, OperationFailure):
                continue
    return None


def wait_for_primary(cluster: RunningCluster, *, other_than: int | None = None) -> int:
    """Index of the primary once there is one, or one other than before."""

    def new_primary() -> tuple[int] | None:
        index = primary(cluster)
        return None if index is None or index == other_than else (index,)

    return eventually(new_primary, what="a member is primary")[0]


def hello_of_whole_set(client: Client) -> Document | None:
    """The hello of a daemon once it contains all members."""
    hello = client.admin.command("hello")
    return hello if len(hello["hosts"]) == MEMBERS and "primary" in hello else None


def step_down(cluster: RunningCluster, index: int) -> None:
    """Make a primary step down and not stand for election for a minute."""
    with cluster.direct(f"{LOWER}.{index}.mongod") as client:
        client.admin.command("replSetStepDown", 60, secondaryCatchUpPeriodSecs=30)


def test_hello_names_daemons_only(replicated: RunningCluster) -> None:
    daemons = {replicated.address(f"{LOWER}.{index}.shardd") for index in range(MEMBERS)}
    for index in range(MEMBERS):
        with replicated.direct(f"{LOWER}.{index}.shardd") as client:
            hello = eventually(partial(hello_of_whole_set, client), what="all daemons are registered")
            assert set(hello["hosts"]) == daemons
            assert hello["primary"] in daemons
            assert hello["me"] == replicated.address(f"{LOWER}.{index}.shardd")


def test_step_down_during_writes(replicated: RunningCluster, collection: Documents) -> None:
    """A planned election causes no errors for writers that retry, and the new primary recognizes their retries."""
    old = wait_for_primary(replicated)
    numbered = {"lsid": {"id": Binary.from_uuid(uuid4())}, "txnNumber": Int64(1), "writeConcern": {"w": "majority"}}
    batch = {"insert": collection.name, "documents": [{"_id": -1, "key": 1}, {"_id": -2, "key": 501}], **numbered}
    with raw_client(replicated.address("router.0")) as client:
        assert client.command(batch, db=collection.database.name)["n"] == 2
    with running_workload(collection) as workload:
        workload.wait_for_progress()
        step_down(replicated, old)
        wait_for_primary(replicated, other_than=old)
        workload.wait_for_progress(50)
    with raw_client(replicated.address("router.0")) as client:
        again = client.command(batch, db=collection.database.name)
    assert (again["n"], again["retriedStmtIds"]) == (2, [0, 1])
    collection.delete_many({"_id": {"$in": [-1, -2]}})
    assert workload.errors == []
    workload.check(list(collection.find()))


@pytest.mark.parametrize("processes", [("mongod",), ("shardd",), ("mongod", "shardd")])
def test_death_of_the_primary_during_writes(
    replicated: RunningCluster, collection: Documents, processes: tuple[str, ...]
) -> None:
    old = wait_for_primary(replicated)
    names = [f"{LOWER}.{old}.{process}" for process in processes]
    with running_workload(collection) as workload:
        workload.wait_for_progress()
        for name in names:
            replicated.kill(name)
        if "mongod" in processes:
            wait_for_primary(replicated, other_than=old)
            workload.wait_for_progress(50)
        for name in names:
            replicated.restart(name)
        workload.wait_for_progress(50)
    workload.check(list(collection.find()))


@contextmanager
def failing_over(cluster: RunningCluster, way: str) -> Iterator[None]:
    """During the block another member is the primary of the first shard, by an election or because the former died."""
    old = wait_for_primary(cluster)
    if way == "step-down":
        step_down(cluster, old)
    else:
        cluster.kill(f"{LOWER}.{old}.mongod")
    try:
        wait_for_primary(cluster, other_than=old)
        yield
    finally:
        if way == "death":
            cluster.restart(f"{LOWER}.{old}.mongod")


@pytest.mark.parametrize("way", ["step-down", "death"])
def test_a_change_stream_goes_on(replicated: RunningCluster, spread: Documents, way: str) -> None:
    """The driver resumes it if necessary; every event of both shards comes once."""
    with spread.watch(max_await_time_ms=200) as stream:
        insert(spread, EVENTS[:20])
        seen = keys_of(stream, 10)
        with failing_over(replicated, way):
            insert(spread, EVENTS[20:])
            seen += keys_of(stream, 30)
            assert stream.try_next() is None
    assert seen == list(EVENTS)


@pytest.mark.parametrize("way", ["step-down", "death"])
def test_change_streams_resume_after_a_failover(replicated: RunningCluster, spread: Documents, way: str) -> None:
    """It works with every kind of start position, also for events that were not read before."""
    starts = read_a_part(spread)
    with failing_over(replicated, way):
        insert(spread, EVENTS[20:])
        check_starts(spread, starts)


def test_change_streams_resume_after_a_restart_of_the_router(replicated: RunningCluster, spread: Documents) -> None:
    starts = read_a_part(spread)
    replicated.kill("router.0")
    replicated.restart("router.0")
    with replicated.client() as client:
        again = client.failover.things
        insert(again, EVENTS[20:])
        check_starts(again, starts)


def test_secondaries_serve_reads(replicated: RunningCluster, collection: Documents) -> None:
    client: Any = collection.database.client
    majority = client.get_database("failover", write_concern=WriteConcern(w=MEMBERS)).things
    majority.insert_many({"_id": n, "key": n} for n in range(1000))
    with replicated.client(readPreference="secondary") as reader:
        found = reader.failover.things.find().sort("key", 1).batch_size(100)
        assert [document["key"] for document in found] == list(range(1000))


def test_reads_after_writes_in_a_session(replicated: RunningCluster, collection: Documents) -> None:
    """Causal consistency: a secondary waits until it has the session's writes."""
    with replicated.client(readPreference="secondary") as client:
        things = client.failover.things
        for n in range(20):
            with client.start_session(causal_consistency=True) as session:
                things.insert_one({"_id": n, "key": n * 50}, session=session)
                assert things.find_one({"key": n * 50}, session=session) == {"_id": n, "key": n * 50}
    assert collection.count_documents({}) == 20


@pytest.mark.parametrize(("of", "phase"), [(CONFIG, "renameMetadata"), (UPPER, "blockCRUDAndRename")])
def test_a_change_waits_for_no_primary_that_has_frozen(
    replicated: RunningCluster, spread: Documents, of: str, phase: str
) -> None:
    """Its successor is asked, so that the collection's names do not stay closed as long as it sleeps."""
    insert(spread, EVENTS)
    client = spread.database.client
    with ExitStack() as clients, ThreadPoolExecutor(1) as pool:
        cluster = FaultCluster(replicated, clients)
        frozen = cluster.primary_index(of)
        with fail_point(
            cluster.client(cluster.primary_daemon(LOWER)),
            "hangInDDLCoordinator",
            operationType="renameCollection",
            at=phase,
        ) as point:
            renaming = pool.submit(client.admin.command, "renameCollection", spread.full_name, to="failover.renamed")
            point.wait_entered()
            with cluster.paused(daemon_of(of, frozen)):
                point.turn_off()
                cluster.client(f"{of}.{(frozen + 1) % MEMBERS}.mongod").admin.command("replSetStepUp")
                assert renaming.result(60)["ok"]
    renamed = client.failover.renamed
    assert sorted(each["key"] for each in renamed.find()) == sorted(EVENTS)
    assert not list(client.failover.command("checkMetadataConsistency")["cursor"]["firstBatch"])
