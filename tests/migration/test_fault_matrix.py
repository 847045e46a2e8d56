"""Every step of a migration is stopped at, and there every kind of process is killed.

Writers go on all the time, with retryable writes that are retried through a second router. In the end every
acknowledged write is there once, no orphan is to be seen, the chunk map is whole, nothing is left behind, and
chunks can be moved.
"""

from operator import itemgetter
from typing import Any

import pytest
from pymongo.collection import Collection

from tests.fail_points import fail_point
from tests.integration.sharded import LOWER, UPPER
from tests.migration.conftest import SPLITS
from tests.migration.fault_cluster import FaultCluster
from tests.migration.invariants import check_collection
from tests.migration.outcome import check_outcome
from tests.migration.places import (
    BLOCKED_PLACES,
    DELETION_PLACES,
    FAILURES,
    PLACES,
    READABLE_AT,
    VICTIMS,
    Place,
    middle_to,
)
from tests.migration.stopped import stopped_at
from tests.migration.writers import KEYS, writing

READABLE_KEYS = {LOWER: (0, SPLITS[1]), UPPER: (SPLITS[1], KEYS)}
"""The keys of the documents that only that shard has while the migration is about to commit, or has just done so."""


def things(cluster: FaultCluster, router: int, namespace: str) -> Collection[dict[str, Any]]:
    """The collection by way of one router."""
    database, _, name = namespace.partition(".")
    return cluster.router(router)[database][name]


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.name)
def test_stop_look_and_go_on(cluster: FaultCluster, namespace: str, place: Place) -> None:
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
    # It may have ended either way.
    check_outcome(cluster, namespace, writers)


@pytest.mark.parametrize("victim", VICTIMS)
@pytest.mark.parametrize("place", DELETION_PLACES, ids=lambda place: place.name)
def test_kill_during_the_deletion(cluster: FaultCluster, namespace: str, place: Place, victim: str) -> None:
    """What the donor has given away is deleted in the end, and not to be seen before."""
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
