"""Killing the donor, the recipient and the config servers at each step of ``movePrimary``.

Afterwards the database is on one of the two shards with everything that was acknowledged, and the other has nothing.
"""

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.errors import DuplicateKeyError, PyMongoError

from shardwright.deploy.ports import PortReservation
from tests.fail_points import FailPoint, fail_point
from tests.integration.waiting import eventually
from tests.shardd.mini_cluster import Client, Member, MiniCluster, Process, mini_cluster

DOCUMENTS = 500
SECONDS_MAX = 120.0

DONOR_STEPS = (
    "movePrimaryHangBeforeClone",
    "movePrimaryHangBeforeCriticalSection",
    "movePrimaryHangInCriticalSection",
    "movePrimaryHangBeforeCommit",
    "movePrimaryHangAfterCommit",
    "movePrimaryHangBeforeDropping",
)
RECIPIENT_STEP = "movePrimaryRecipientHangBeforeClone"
COMMITTED_FROM = DONOR_STEPS.index("movePrimaryHangBeforeCommit")

_names = count()


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MiniCluster]:
    """A cluster whose processes are killed."""
    with mini_cluster(tmp_path_factory.mktemp("moves")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def router(own: MiniCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A client of a router of the cluster."""
    with PortReservation() as ports:
        port, metrics_port = ports.hold_free(), ports.hold_free()
    arguments = ["--configdb", own.config.connection_string, "--port", str(port), "--metrics-port", str(metrics_port)]
    log = tmp_path_factory.mktemp("router") / "router.log"
    process = Process([sys.executable, "-m", "shardwright.router.main", *arguments], log)
    process.start()
    try:
        with MongoClient[dict[str, Any]](f"mongodb://127.0.0.1:{port}/", directConnection=True) as client:
            yield client
    finally:
        assert isinstance(process.running, subprocess.Popen)
        process.stop()


class Writer:
    """Inserts documents until the block ends, and repeats unacknowledged ones."""

    def __init__(self, client: Client, db: str) -> None:
        self.acknowledged = 0
        self._target = client[db].written
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Writer":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join(SECONDS_MAX)
        assert not self._thread.is_alive(), "a write does not end"

    def _run(self) -> None:
        while not self._is_over.is_set():
            try:
                self._target.insert_one({"_id": self.acknowledged})
            except DuplicateKeyError:
                self.acknowledged += 1  # by an attempt whose reply was lost
            except PyMongoError:
                continue
            else:
                self.acknowledged += 1


@contextmanager
def moving(router: Client, db: str) -> Iterator[None]:
    """Move the database to ``sh1`` during the block, whatever the outcome, and wait for the end of the command."""

    def run() -> None:
        with suppress(PyMongoError):  # the state afterwards is what counts
            router.admin.command("movePrimary", db, to="sh1")

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield
    thread.join(SECONDS_MAX)
    assert not thread.is_alive(), "a move does not end"


def coordinators(own: MiniCluster) -> int:
    with own.shards["sh0"].members[0].mongod_client() as mongod:
        return int(mongod.config["system.sharding_ddl_coordinators"].count_documents({}))


def kill(own: MiniCluster, victim: str, point: FailPoint | None = None) -> None:
    part, _, process = victim.partition(" ")
    shards = {"donor": own.shards.get("sh0"), "recipient": own.shards.get("sh1"), "config": own.config}
    member: Member = shards[part].members[0]  # type: ignore[union-attr]
    member.restart(member.mongod if process == "mongod" else member.daemon)


def contents(own: MiniCluster, shard: str, db: str) -> set[str]:
    with own.shards[shard].members[0].mongod_client() as mongod:
        return set(mongod[db].list_collection_names())


def check_whole(own: MiniCluster, router: Client, db: str, acknowledged: int) -> str:
    """Check that all is on the primary shard and nothing on the other; returns the primary shard."""
    eventually(lambda: coordinators(own) == 0, within=SECONDS_MAX, what="no coordinator is left")
    with own.config_client() as config:
        entry = config.config.databases.find_one({"_id": db})
        assert entry is not None
    primary = str(entry["primary"])
    other = "sh0" if primary == "sh1" else "sh1"
    assert contents(own, other, db) == set()
    assert contents(own, primary, db) == {"filled", "view", "system.views", "written"}
    with own.shards[primary].members[0].mongod_client() as mongod:
        assert mongod[db].filled.count_documents({}) == DOCUMENTS
        assert {each["_id"] for each in mongod[db].written.find()} == set(range(acknowledged))
        assert "n_1" in mongod[db].filled.index_information()
    assert router[db].filled.count_documents({}) == DOCUMENTS
    router[db].written.insert_one({"_id": "after"})
    return primary


def fill(router: Client) -> str:
    db = f"moved{next(_names)}"
    router.admin.command("enableSharding", db, primaryShard="sh0")
    router[db].filled.insert_many([{"_id": n, "n": n, "text": "x" * 200} for n in range(DOCUMENTS)])
    router[db].filled.create_index("n")
    router[db].command("create", "view", viewOn="filled", pipeline=[])
    return db


@pytest.mark.matrix(share=0.5)
@pytest.mark.parametrize(
    "victim", ["donor daemon", "donor mongod", "recipient daemon", "recipient mongod", "config daemon"]
)
@pytest.mark.parametrize("step", [*DONOR_STEPS, RECIPIENT_STEP])
def test_a_killed_process_leaves_the_database_whole(own: MiniCluster, router: Client, step: str, victim: str) -> None:
    db = fill(router)
    where = own.shards["sh1" if step == RECIPIENT_STEP else "sh0"].members[0]
    with Writer(router, db) as writer:
        eventually(lambda: writer.acknowledged > 20, what="writes begin")
        with where.client() as daemon, fail_point(daemon, step) as point, moving(router, db):
            point.wait_entered()
            kill(own, victim)
            with where.client() as again:
                again.admin.command("configureFailPoint", step, mode="off")
        before = writer.acknowledged
        eventually(lambda: writer.acknowledged > before + 20, within=SECONDS_MAX, what="writes go on")
    primary = check_whole(own, router, db, writer.acknowledged)
    if step in DONOR_STEPS[COMMITTED_FROM:]:
        assert primary == "sh1"


@pytest.mark.parametrize("victim", ["donor daemon", "recipient daemon"])
def test_a_move_that_is_given_up_leaves_nothing(own: MiniCluster, router: Client, victim: str) -> None:
    """The copies are dropped, also if either side ends before that."""
    db = fill(router)
    router[db].written.insert_one({"_id": 0})
    donor = own.shards["sh0"].members[0]
    with (
        donor.client() as daemon,
        fail_point(daemon, "movePrimaryHangBeforeAborting") as aborting,
        fail_point(daemon, "movePrimaryHangBeforeCriticalSection") as steady,
        moving(router, db),
    ):
        steady.wait_entered()
        with router.start_session() as session, session.start_transaction():
            router[db].written.insert_one({"_id": "open"}, session=session)
            steady.turn_off()
            aborting.wait_entered()
            session.abort_transaction()
        assert contents(own, "sh1", db) >= {"filled", "written"}
        kill(own, victim)
        with donor.client() as again:
            again.admin.command("configureFailPoint", "movePrimaryHangBeforeAborting", mode="off")
    primary = check_whole(own, router, db, 1)
    assert primary == "sh0" or victim == "donor daemon"  # then the router has sent the command again
