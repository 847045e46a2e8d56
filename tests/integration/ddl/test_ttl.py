"""TTL indexes of sharded collections: each shard's mongod deletes its own expired documents."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Final

import pytest

from tests.fail_points import fail_point
from tests.integration.sharded import SPLIT_AT, UPPER, Documents
from tests.integration.waiting import eventually
from tests.local_cluster import Client, RunningCluster
from tests.migration.moving import moving

HOUR: Final = timedelta(hours=1)
FIRST_PASS: Final = 120.0
"""Seconds. The shorter pause counts after one of a minute, which may just have begun."""


@pytest.fixture(autouse=True)
def frequent_passes(lower_mongod: Client, upper_mongod: Client) -> Iterator[None]:
    """Shorten the interval at which the mongods look for expired documents to a second."""
    mongods = (lower_mongod, upper_mongod)
    for mongod in mongods:
        mongod.admin.command("setParameter", 1, ttlMonitorSleepSecs=1)
    yield
    for mongod in mongods:
        mongod.admin.command("setParameter", 1, ttlMonitorSleepSecs=60)


def keys(documents: Documents) -> list[int]:
    return sorted(each["key"] for each in documents.find())


def test_documents_expire_on_every_shard(placed: Documents) -> None:
    placed.create_index("at", expireAfterSeconds=3600)
    now = datetime.now(UTC)
    placed.insert_many(
        {"key": key, "at": now - timedelta(seconds=age)} for key in (1, SPLIT_AT) for age in (-9, 0, 2700, 4500)
    )
    eventually(lambda: keys(placed) == [1] * 3 + [SPLIT_AT] * 3, within=FIRST_PASS, what="an hour has passed for some")
    placed.database.command("collMod", placed.name, index={"name": "at_1", "expireAfterSeconds": 1800})
    eventually(lambda: keys(placed) == [1] * 2 + [SPLIT_AT] * 2, what="half an hour has passed for others")


def test_what_expires_during_a_move_stays_away(placed: Documents, cluster: RunningCluster) -> None:
    """Both mongods delete it, the recipient's perhaps before it receives the donor's deletion."""
    placed.create_index("at", expireAfterSeconds=0)
    now = datetime.now(UTC)
    placed.insert_many({"key": key, "at": now + HOUR} for key in range(100))
    with (
        cluster.direct("shard0.0.shardd") as donor,
        fail_point(donor, "moveChunkHangAtStep4") as point,
        moving(cluster.address("router.0"), {"moveChunk": placed.full_name, "find": {"key": 0}, "to": UPPER}) as move,
    ):
        point.wait_entered()
        placed.update_many({"key": {"$lt": 50}}, {"$set": {"at": now - HOUR}})
        eventually(lambda: keys(placed) == list(range(50, 100)), within=FIRST_PASS, what="half are gone")
        point.turn_off()
        reply = move.wait()
    assert reply is not None
    assert reply["ok"] == 1, reply
    assert keys(placed) == list(range(50, 100))


def test_what_gets_more_time_during_a_move_is_kept(
    placed: Documents, cluster: RunningCluster, upper_mongod: Client
) -> None:
    """The recipient's mongod deletes a document that was changed on the donor after it was cloned."""
    placed.create_index("at", expireAfterSeconds=0)
    with cluster.direct("shard0.0.mongod") as lower_mongod:
        lower_mongod.admin.command("setParameter", 1, ttlMonitorEnabled=False)
        try:
            now = datetime.now(UTC)
            placed.insert_many({"key": key, "at": now - HOUR} for key in range(100))
            move = {"moveChunk": placed.full_name, "find": {"key": 0}, "to": UPPER}
            with (
                cluster.direct("shard0.0.shardd") as donor,
                fail_point(donor, "moveChunkHangAtStep4") as point,
                moving(cluster.address("router.0"), move) as running,
            ):
                point.wait_entered()
                there = upper_mongod[placed.database.name][placed.name]
                eventually(lambda: there.count_documents({}) == 0, within=FIRST_PASS, what="the copies are gone")
                placed.update_many({}, {"$set": {"at": now + HOUR}})
                point.turn_off()
                reply = running.wait()
        finally:
            lower_mongod.admin.command("setParameter", 1, ttlMonitorEnabled=True)
    assert reply is not None
    assert reply["ok"] == 1, reply
    assert keys(placed) == list(range(100))
