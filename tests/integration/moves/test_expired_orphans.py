"""Expired documents of ranges that move: change streams show each deletion once."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from threading import Thread

import pytest

from tests.fail_points import fail_point
from tests.integration.change_streams.test_change_streams import brief, take
from tests.integration.sharded import LOWER, SPLIT_AT, UPPER, Documents, shard_by_range
from tests.integration.waiting import eventually
from tests.local_cluster import Client, RunningCluster, running_cluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    """A cluster whose TTL monitors look every second."""
    fast = ("--set-parameter", "ttlMonitorSleepSecs=1")
    with running_cluster(tmp_path_factory.mktemp("expiring"), "--members", "1", *fast) as running:
        yield running


@pytest.fixture
def expiring(cluster: RunningCluster) -> Iterator[Documents]:
    """An empty collection on both shards."""
    with cluster.client() as client:
        client.admin.command("enableSharding", "expiring", primaryShard=LOWER)
        yield shard_by_range(client.expiring)
        client.drop_database("expiring")


@contextmanager
def orphans_kept(shard: Client) -> Iterator[None]:
    """Have a shard not delete ranges that it gives away during the block."""
    delay = "orphanCleanupDelaySecs"
    before = shard.admin.command({"getParameter": 1, delay: 1})[delay]
    shard.admin.command({"setParameter": 1, delay: 900})
    try:
        yield
    finally:
        shard.admin.command({"setParameter": 1, delay: before})


def insert_expiring(documents: Documents) -> None:
    """Insert twenty documents of the lower chunk that expire in six seconds."""
    soon = datetime.now(UTC) + timedelta(seconds=6)
    documents.insert_many([{"_id": key, "key": key, "at": soon} for key in range(20)])
    documents.create_index("at", expireAfterSeconds=0)


@contextmanager
def held_move(cluster: RunningCluster, donor: Client, documents: Documents) -> Iterator[Documents]:
    """Move the lower chunk, held during the block when the recipient has the copies; gives these."""
    command = partial(documents.database.client.admin.command, "moveChunk", documents.full_name)
    mover = Thread(target=partial(command, find={"key": 1}, to=UPPER))
    with fail_point(donor, "moveChunkHangAtStep4") as here:
        mover.start()
        here.wait_entered()
        with cluster.direct(f"{UPPER}.0.mongod") as recipient:
            yield recipient[documents.database.name][documents.name]
        here.turn_off()
        mover.join(60)


def test_expired_orphans_are_no_events(cluster: RunningCluster, expiring: Documents) -> None:
    """The orphan of a document that lives on with a later date, and the orphan of one that expires on its new shard."""
    now = datetime.now(UTC)
    soon = now + timedelta(seconds=15)  # after the stream is open, and the chunk has moved
    expiring.insert_many([{"_id": key, "key": key, "at": soon} for key in (1, 2)])
    expiring.insert_one({"_id": 3, "key": SPLIT_AT + 3, "at": soon})
    expiring.create_index("at", expireAfterSeconds=0)
    with (
        expiring.watch(max_await_time_ms=500) as stream,
        cluster.direct(f"{LOWER}.0.shardd") as shard,
        orphans_kept(shard),
    ):
        expiring.database.client.admin.command("moveChunk", expiring.full_name, find={"key": 1}, to=UPPER)
        expiring.update_one({"key": 2}, {"$set": {"at": now + timedelta(days=1)}})
        events = take(stream, 3, within=60)
        with cluster.direct(f"{LOWER}.0.mongod") as donor:
            orphans = donor[expiring.database.name][expiring.name]
            eventually(lambda: not orphans.find_one(), what="the orphans have expired")
        expiring.insert_one({"_id": 4, "key": SPLIT_AT + 4})
        events += take(stream, 1)
        assert stream.try_next() is None
    assert sorted(brief(events)) == [("delete", 1), ("delete", 3), ("insert", 4), ("update", 2)]


def test_a_document_that_expires_while_it_moves_is_deleted_once(cluster: RunningCluster, expiring: Documents) -> None:
    insert_expiring(expiring)
    with expiring.watch(max_await_time_ms=500) as stream, cluster.direct(f"{LOWER}.0.shardd") as donor:
        with held_move(cluster, donor, expiring) as copies:
            assert copies.count_documents({}) == 20
            events = take(stream, 20, within=60)
            eventually(lambda: not copies.find_one(), what="the copies have expired")
        expiring.insert_one({"_id": 20, "key": 1})
        events += take(stream, 1)
        assert stream.try_next() is None
    assert sorted(brief(events)) == [("delete", key) for key in range(20)] + [("insert", 20)]


def test_a_document_whose_copy_expires_first_is_deleted_once(cluster: RunningCluster, expiring: Documents) -> None:
    """The recipient deletes its copies before it owns them, the donor the documents when it owns them no longer."""
    insert_expiring(expiring)
    expiring.insert_one({"_id": 20, "key": 20, "at": datetime.now(UTC) + timedelta(days=1)})
    with (
        expiring.watch(max_await_time_ms=500) as stream,
        cluster.direct(f"{LOWER}.0.shardd") as donor,
        cluster.direct(f"{LOWER}.0.mongod") as patient,
        orphans_kept(donor),
    ):
        patient.admin.command("setParameter", 1, ttlMonitorEnabled=False)
        try:
            with held_move(cluster, donor, expiring) as copies:
                assert copies.count_documents({}) == 21
                eventually(lambda: copies.count_documents({}) == 1, what="the copies have expired")
            assert expiring.count_documents({}) == 1
        finally:
            patient.admin.command("setParameter", 1, ttlMonitorEnabled=True)
        events = take(stream, 20, within=60)
        expiring.delete_one({"_id": 20, "key": 20})
        events += take(stream, 1)
        assert stream.try_next() is None
    assert sorted(brief(events)) == [("delete", key) for key in range(21)]
