"""A migration is paused at every step, and every kind of process is killed there.

Meanwhile writers continue, with retryable writes that are retried through a second router. At the end every
acknowledged write is there exactly once, no orphans are visible, the chunk map is complete, nothing is left behind, and
chunks can be moved.
"""

from operator import itemgetter
from typing import Any

import pytest
from pymongo.collection import Collection

from tests.fail_points import FailPoint, fail_point
from tests.integration.sharded import LOWER, UPPER
from tests.migration.conftest import SPLITS
from tests.migration.fault_cluster import FaultCluster, catalog_documents
from tests.migration.invariants import check_collection
from tests.migration.outcome import check_outcome
from tests.migration.places import (
    ABORTED_PLACES,
    BLOCKED_PLACES,
    COMMITTED_PLACES,
    DELETION_PLACES,
    DONOR,
    FAILURES,
    PLACES,
    READABLE_AT,
    RECIPIENT,
    VICTIMS,
    Place,
    middle_to,
)
from tests.migration.stopped import stopped_at
from tests.migration.writers import KEYS, writing

READABLE_KEYS = {LOWER: (0, SPLITS[1]), UPPER: (SPLITS[1], KEYS)}
"""The keys of the documents that only that shard has, shortly before and after the commit."""

SHARD_VICTIMS = tuple(victim for victim in VICTIMS if victim.startswith((LOWER, UPPER)))


def things(cluster: FaultCluster, router: int, namespace: str) -> Collection[dict[str, Any]]:
    """The collection through one router."""
    database, _, name = namespace.partition(".")
    return cluster.router(router)[database][name]


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.name)
def test_pause_inspect_and_continue(cluster: FaultCluster, namespace: str, place: Place) -> None:
    routers = cluster.router_addresses
    still: list[dict[str, Any]] = [{"_id": f"still/{key}", "key": key, "is_still": True} for key in range(0, KEYS, 10)]
    things(cluster, 0, namespace).insert_many(still)
    with writing(namespace, routers) as writers:
        writers.wait_for_progress(60)
        with stopped_at(cluster, namespace, place) as (point, move):
            low, high = READABLE_KEYS.get(READABLE_AT.get(place.name, ""), (0, KEYS))
            expected = [document for document in still if low <= document["key"] < high]
            query = {"is_still": True, "key": {"$gte": low, "$lt": high}}
            for router in range(2):
                found = list(things(cluster, router, namespace).find(query, max_time_ms=10_000))
                assert sorted(found, key=itemgetter("key")) == expected
                assert things(cluster, router, namespace).count_documents(query) == len(expected)
            if place.name not in BLOCKED_PLACES:
                writers.wait_for_progress(60)
            assert not move.is_over
            point.turn_off()
            reply = move.wait()
        assert reply is not None
        assert reply["ok"] == 1, reply
        writers.wait_for_progress(60)
    writers.retry_kept()
    placement = check_collection(
        cluster, namespace, {**{document["_id"]: document for document in still}, **writers.model}
    )
    assert placement.owner({"key": SPLITS[0]}) == UPPER


@pytest.mark.matrix
@pytest.mark.parametrize("victim", VICTIMS)
@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.name)
def test_kill(cluster: FaultCluster, namespace: str, place: Place, victim: str) -> None:
    routers = cluster.router_addresses
    with writing(namespace, routers) as writers:
        writers.wait_for_progress(60)
        with stopped_at(cluster, namespace, place) as (point, move):
            cluster.kill(victim)
            cluster.restart(victim)
            point.turn_off()
            move.wait()
        writers.wait_for_progress(60)
    # It may have been committed or aborted.
    check_outcome(cluster, namespace, writers)


@pytest.mark.matrix
@pytest.mark.parametrize("victim", [None, *SHARD_VICTIMS])
@pytest.mark.parametrize("place", COMMITTED_PLACES, ids=lambda place: place.name)
def test_kill_after_the_commit(cluster: FaultCluster, namespace: str, place: Place, victim: str | None) -> None:
    """A migration that the config servers have committed is completed from its persisted state."""
    with writing(namespace, cluster.router_addresses) as writers:
        writers.wait_for_progress(60)
        with stopped_at(cluster, namespace, place) as (point, move):
            check_completed(cluster, namespace, "committed", COMMITTED_PLACES.index(place))
            go_on_without(cluster, victim, point)
            reply = move.wait()
        writers.wait_for_progress(60)
    assert reply is not None
    assert reply["ok"] == 1, reply
    assert check_outcome(cluster, namespace, writers).owner({"key": SPLITS[0]}) == UPPER


@pytest.mark.matrix
@pytest.mark.parametrize("victim", [None, f"{DONOR}.shardd", f"{RECIPIENT}.shardd"])
@pytest.mark.parametrize("place", ABORTED_PLACES, ids=lambda place: place.name)
def test_kill_after_the_abort(cluster: FaultCluster, namespace: str, place: Place, victim: str | None) -> None:
    """Nothing of the aborted migration hinders the next one of the range.

    That may be the same request: the config daemon repeats it if the donor was down and did not answer.
    """
    failure = fail_point(cluster.client(place.daemon), "failMigrationCommit", {"times": 1})
    with writing(namespace, cluster.router_addresses) as writers:
        writers.wait_for_progress(60)
        with failure, stopped_at(cluster, namespace, place) as (point, move):
            check_completed(cluster, namespace, "aborted", ABORTED_PLACES.index(place))
            go_on_without(cluster, victim, point)
            reply = move.wait()
        writers.wait_for_progress(60)
    assert reply is not None
    if victim != f"{DONOR}.shardd":
        assert reply["ok"] == 0, reply
    expected = UPPER if reply["ok"] else LOWER
    assert check_outcome(cluster, namespace, writers).owner({"key": SPLITS[0]}) == expected


def go_on_without(cluster: FaultCluster, victim: str | None, point: FailPoint) -> None:
    """Kill a process and turn the fail point off; a killed recipient stays down while the donor continues."""
    if victim is not None:
        cluster.kill(victim)
    if victim is None or victim.startswith(RECIPIENT):
        point.turn_off()
    if victim is not None:
        cluster.restart(victim)
        point.turn_off()


def check_completed(cluster: FaultCluster, namespace: str, decision: str, place: int) -> None:
    """Check the state of a migration's completion at the place where it waits.

    Args:
        decision: the migration's decision.
        place: the number of the place where it waits, of three in order.
    """
    (coordinator,) = catalog_documents(cluster.client(f"{DONOR}.mongod"), "migrationCoordinators", {"nss": namespace})
    assert coordinator.get("decision") == (decision if place else None)
    pending = [
        bool(catalog_documents(cluster.client(mongod), "rangeDeletions", {"nss": namespace, "pending": True}))
        for mongod in (f"{DONOR}.mongod", f"{RECIPIENT}.mongod")
    ]
    assert pending == [place < 1, place < 2]


@pytest.mark.matrix
@pytest.mark.parametrize("victim", VICTIMS)
@pytest.mark.parametrize("place", DELETION_PLACES, ids=lambda place: place.name)
def test_kill_during_the_deletion(cluster: FaultCluster, namespace: str, place: Place, victim: str) -> None:
    """The donor's former documents are deleted eventually, and not visible before."""
    routers = cluster.router_addresses
    with writing(namespace, routers) as writers:
        writers.wait_for_progress(90)
        with fail_point(cluster.client(place.daemon), place.name) as point:
            cluster.router(1).admin.command(middle_to(UPPER, namespace))
            point.wait_entered()
            cluster.kill(victim)
            cluster.restart(victim)
            point.turn_off()
        writers.wait_for_progress(60)
    assert check_outcome(cluster, namespace, writers).owner({"key": SPLITS[0]}) == UPPER


@pytest.mark.parametrize("place", FAILURES, ids=lambda place: place.name)
def test_failure(cluster: FaultCluster, namespace: str, place: Place) -> None:
    routers = cluster.router_addresses
    with writing(namespace, routers) as writers:
        writers.wait_for_progress(90)
        with stopped_at(cluster, namespace, place, {"times": 1}) as (_, move):
            assert move.wait() is not None
        writers.wait_for_progress(60)
    check_outcome(cluster, namespace, writers)
