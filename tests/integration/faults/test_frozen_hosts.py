"""Hosts that are frozen or unplugged: operations wait for an election, not for the host.

A host is away until all operations have ended. So one that waits for the host never ends.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic, sleep
from typing import Any, Final
from uuid import uuid4

import pytest
from bson.binary import Binary
from pymongo import ReadPreference
from pymongo.errors import CursorNotFound, OperationFailure, PyMongoError

from shardwright.wire.error_codes import ErrorCode
from tests.chaos.cluster import shaped_cluster
from tests.chaos.links import Fault, Links
from tests.chaos.nemeses.hosts import host_away
from tests.chaos.stage import Shape
from tests.integration.sharded import LOWER
from tests.integration.waiting import eventually
from tests.local_cluster import Client
from tests.migration.fault_cluster import CONFIG, FaultCluster

BOUND_SECONDS: Final = 3.0
"""Maximum duration of an operation beyond the election."""

SLACK_SECONDS: Final = 10.0
"""Additional time for a busy machine."""

LOST_SECONDS: Final = 12.0
"""After this time a secondary that says nothing is lost."""

PRIORITY_TAKEOVER_SECONDS: Final = 12.0
"""More than a mongod of higher priority waits before it stands for election, and less than its daemon is missed for."""

POLL_SECONDS: Final = 0.2

ROUNDS_AFTERWARDS: Final = 5

END_SECONDS_MAX: Final = 60.0

Work = Callable[[int], None]


@dataclass
class Place:
    """A cluster of one shard with three members, and a router's client with the defaults of its driver."""

    cluster: FaultCluster
    links: Links
    client: Client


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    shape = Shape(members=3, config_members=3, routers=2, has_links=True, shards=1)
    with shaped_cluster(tmp_path_factory.mktemp("away"), shape) as (cluster, links):
        assert links is not None
        with cluster.running.direct("router.0") as client:
            client.admin.command("enableSharding", "away")
            client.admin.command("shardCollection", "away.things", key={"_id": 1})
            client.away.things.insert_many([{"_id": -number} for number in range(1, 101)])
            yield Place(cluster, links, client)


@dataclass
class Load:
    """Threads that repeat operations, and how long these have taken.

    Attributes:
        longest: the longest duration, by the name of the operation.
        failures: the errors that clients got.
        counts: completed operations, by name.
    """

    works: dict[str, Work]
    longest: dict[str, float] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    _is_over: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    @contextmanager
    def running(self, threads_each: int = 3) -> Iterator[None]:
        """Run the load until the end of the block, or `stop_and_wait`."""
        threads = [
            threading.Thread(target=self._repeat, args=(name, index), daemon=True)
            for name in self.works
            for index in range(threads_each)
        ]
        for thread in threads:
            thread.start()
        self._threads = threads
        try:
            yield
        finally:
            self._is_over.set()

    def stop_and_wait(self) -> None:
        """Begin no more operations, and wait until all have ended."""
        self._is_over.set()
        deadline = monotonic() + END_SECONDS_MAX
        for thread in self._threads:
            thread.join(max(0.0, deadline - monotonic()))
        assert not any(thread.is_alive() for thread in self._threads), f"operations hang; {self.longest}"

    def wait_rounds(self, rounds: int) -> None:
        """Wait until each thread has begun and completed some more operations, on average."""
        goals = {name: self.counts.get(name, 0) + 3 * rounds for name in self.works}
        eventually(
            lambda: all(self.counts.get(name, 0) >= goal for name, goal in goals.items()),
            within=120,
            what="operations are completed",
        )

    def _repeat(self, name: str, index: int) -> None:
        number = index * 1_000_000
        while not self._is_over.is_set():
            number += 1
            began = monotonic()
            try:
                self.works[name](number)
            except PyMongoError as error:
                self.failures.append(f"{name}: {error!r}")
            self.longest[name] = max(self.longest.get(name, 0.0), monotonic() - began)
            self.counts[name] = self.counts.get(name, 0) + 1


class Writers:
    """Operations on one collection, and the documents that were acknowledged."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._things = client.away.things
        self.acknowledged: list[int] = []

    @property
    def works(self) -> dict[str, Work]:
        """All of them, by name."""
        return {"insert": self._insert, "transaction": self._transaction, "read": self._read, "scan": self._scan}

    def missing(self) -> list[int]:
        """Acknowledged documents that are not there."""
        there = {document["_id"] for document in self._things.find()}
        return [each for each in self.acknowledged if each not in there]

    def _insert(self, number: int) -> None:
        self._things.insert_one({"_id": number})
        self.acknowledged.append(number)

    def _transaction(self, number: int) -> None:
        identity = 500_000 + number

        def work(session: Any) -> None:  # noqa: ANN401 - a session
            self._things.insert_one({"_id": identity}, session=session)
            self._things.update_one({"_id": -1}, {"$inc": {f"n{number // 1_000_000}": 1}}, session=session)

        with self._client.start_session() as session:
            session.with_transaction(work)
        self.acknowledged.append(identity)

    def _read(self, number: int) -> None:
        assert self._things.find_one({"_id": -1 - number % 100}) is not None

    def _scan(self, number: int) -> None:
        assert len(list(self._things.find({"_id": {"$lt": 0}}, batch_size=10))) == 100


@pytest.mark.matrix(share=0.5)
@pytest.mark.parametrize("is_cut_off", [False, True], ids=["frozen", "cut off"])
def test_operations_wait_for_an_election_when_a_primary_is_away(place: Place, *, is_cut_off: bool) -> None:
    cluster, before = place.cluster, place.cluster.primary_index(LOWER)
    place.client.away.things.delete_many({"_id": {"$gt": 0}})
    writers = Writers(place.client)
    load = Load(writers.works)
    with load.running():
        load.wait_rounds(ROUNDS_AFTERWARDS)
        assert not load.failures
        with host_away(cluster, f"{LOWER}.{before}", place.links if is_cut_off else None):
            began = monotonic()
            cluster.primary_index(LOWER, other_than=before)
            election_seconds = monotonic() - began
            load.wait_rounds(ROUNDS_AFTERWARDS)
            load.stop_and_wait()
    print(f"election {election_seconds:.1f} s, operations {load.longest}")
    assert max(load.longest.values()) < election_seconds + BOUND_SECONDS + SLACK_SECONDS, load.longest
    # A cursor is lost with its member.
    assert all(each.startswith("scan: ") and "HostUnreachable" in each for each in load.failures), load.failures
    assert writers.acknowledged
    assert not writers.missing()


@pytest.mark.parametrize("of", [LOWER, CONFIG])
def test_another_member_takes_over_when_only_the_daemon_of_a_primary_is_frozen(place: Place, of: str) -> None:
    """The replica set would keep a primary that no client can reach."""
    cluster, before = place.cluster, place.cluster.primary_index(of)
    place.client.away.things.delete_many({"_id": {"$gt": 0}})
    writers = Writers(place.client)

    def create(number: int) -> None:
        place.client.away.create_collection(f"created{number}")

    load = Load(writers.works if of == LOWER else {"create": create})
    with load.running(threads_each=2):
        load.wait_rounds(1)
        with cluster.paused(f"{of}.{before}.{'shardd' if of == LOWER else 'configd'}"):
            began = monotonic()
            cluster.primary_index(of, other_than=before)
            election_seconds = monotonic() - began
            load.wait_rounds(ROUNDS_AFTERWARDS)
            load.stop_and_wait()
    print(f"election {election_seconds:.1f} s, operations {load.longest}")
    assert all(each.startswith("scan: ") and "HostUnreachable" in each for each in load.failures), load.failures
    assert not writers.missing()


def test_a_replaced_primary_of_higher_priority_waits_for_its_daemon(place: Place) -> None:
    """Its mongod would be elected after `electionTimeoutMillis`, and again out of the reach of all clients."""
    cluster, before = place.cluster, place.cluster.primary_index(LOWER)
    mongod = cluster.client(f"{LOWER}.{before}.mongod")
    with preferred(mongod):
        with cluster.paused(f"{LOWER}.{before}.shardd"):
            cluster.primary_index(LOWER, other_than=before)
            replaced = monotonic()
            while monotonic() - replaced < PRIORITY_TAKEOVER_SECONDS:
                assert not mongod.admin.command("hello")["isWritablePrimary"]
                sleep(POLL_SECONDS)
        assert cluster.primary_index(LOWER) != before
        eventually(lambda: cluster.primary_index(LOWER) == before, what="the preferred member is elected")


@contextmanager
def preferred(mongod: Client) -> Iterator[None]:
    """Give a primary a higher priority than the other members have, until the block ends."""
    name = mongod.admin.command("hello")["me"]
    for priority in (2, 1):
        config = mongod.admin.command("replSetGetConfig")["config"]
        for member in config["members"]:
            member["priority"] = priority if member["host"] == name else 1
        mongod.admin.command("replSetReconfig", {**config, "version": config["version"] + 1})
        if priority > 1:
            yield


def test_a_primary_keeps_its_role_when_only_one_other_daemon_misses_its_daemon(place: Place) -> None:
    cluster, before = place.cluster, place.cluster.primary_index(LOWER)
    missing = f"{LOWER}.{(before + 1) % 3}.shardd"
    log = cluster.running.log(missing)
    with place.links.harmed(missing, f"{LOWER}.{before}.shardd", Fault.SILENT):
        eventually(
            lambda: "Only a minority misses the primary's daemon" in cluster.running.log(missing)[len(log) :],
            within=60,
            what="the daemon that is cut off asks the other one",
        )
    assert cluster.primary_index(LOWER) == before


def test_reads_from_secondaries_go_elsewhere_when_one_is_frozen(place: Place) -> None:
    cluster = place.cluster
    cluster.primary_index(LOWER)
    things = place.client.away.get_collection("things", read_preference=ReadPreference.SECONDARY)
    nearest = place.client.away.get_collection("things", read_preference=ReadPreference.NEAREST)
    load = Load(
        {
            "secondary": lambda number: assert_found(things.find_one({"_id": -1 - number % 100})),
            "nearest": lambda number: assert_found(nearest.find_one({"_id": -1 - number % 100})),
        }
    )
    with load.running():
        load.wait_rounds(ROUNDS_AFTERWARDS)
        # The one that is used: the router prefers members with short round trips.
        [reader] = things.aggregate([{"$collStats": {"latencyStats": {}}}])
        port = reader["host"].rpartition(":")[2]
        daemons = {each: each.replace(".mongod", ".shardd") for each in cluster.mongods_of(LOWER)}
        name = next(each for each, daemon in daemons.items() if cluster.running.address(daemon).endswith(f":{port}"))
        with host_away(cluster, name.rpartition(".")[0]):
            began = monotonic()
            load.wait_rounds(ROUNDS_AFTERWARDS)
            while monotonic() - began < LOST_SECONDS + BOUND_SECONDS:
                load.wait_rounds(ROUNDS_AFTERWARDS)
            load.stop_and_wait()
    print(f"operations {load.longest}")
    assert max(load.longest.values()) < LOST_SECONDS + BOUND_SECONDS + SLACK_SECONDS, load.longest
    assert not load.failures


@pytest.mark.parametrize("command", ["killSessions", "killAllSessions", "killAllSessionsByPattern"])
def test_sessions_are_killed_on_all_members_or_it_is_said_where_not(place: Place, command: str) -> None:
    """A router has no list of the cursors that other routers have opened on secondaries."""
    cluster = place.cluster
    primary = cluster.primary_index(LOWER)
    frozen = f"{LOWER}.{(primary + 1) % 3}"
    secondaries = place.client.away.get_collection("things", read_preference=ReadPreference.SECONDARY)
    with place.client.start_session() as session, cluster.running.direct("router.1") as killer:
        meant = [session.session_id] if command == "killSessions" else []
        other = {"killSessions": [{"id": Binary.from_uuid(uuid4())}]}
        eventually(lambda: killer.admin.command(other, check=False)["ok"], what="the router reaches all members again")
        cursor = secondaries.find(batch_size=2, session=session)
        assert next(cursor)
        killer.admin.command({command: meant})
        with pytest.raises(CursorNotFound):
            list(cursor)
        with host_away(cluster, frozen), pytest.raises(OperationFailure) as failed:
            killer.admin.command({command: meant})
    assert failed.value.code == ErrorCode.HostUnreachable
    assert failed.value.details is not None
    assert failed.value.details["failedHosts"] == [cluster.running.address(f"{frozen}.shardd")]


def test_operations_that_need_the_catalog_wait_for_an_election_of_config_servers(place: Place) -> None:
    cluster, client, before = place.cluster, place.client, place.cluster.primary_index(CONFIG)

    def shard_and_drop(number: int) -> None:
        client.admin.command("shardCollection", f"away.new{number}", key={"key": 1})
        client.away[f"new{number}"].insert_one({"key": 1})
        client.away.drop_collection(f"new{number}")

    def refresh(_: int) -> None:
        client.admin.command("flushRouterConfig")
        assert_found(client.away.things.find_one({"_id": -1}))

    load = Load(
        {
            "ddl": shard_and_drop,
            "refresh": refresh,
        }
    )
    with load.running(threads_each=1):
        load.wait_rounds(1)
        with host_away(cluster, f"{CONFIG}.{before}"):
            began = monotonic()
            cluster.primary_index(CONFIG, other_than=before)
            election_seconds = monotonic() - began
            load.wait_rounds(1)
            load.stop_and_wait()
    print(f"election {election_seconds:.1f} s, operations {load.longest}, {load.failures}")
    # A change of the catalog is a dozen majority writes, and each may wait until a member has a new sync source.
    assert load.longest["refresh"] < election_seconds + BOUND_SECONDS + SLACK_SECONDS, load.longest
    assert not load.failures


def assert_found(document: Any) -> None:  # noqa: ANN401 - a document or None
    assert document is not None
