"""New primaries that are slow to recover, and get requests before they have."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from pymongo.errors import AutoReconnect

from tests.integration.sharded import UPPER
from tests.integration.waiting import eventually
from tests.migration.conftest import SPLITS
from tests.migration.fault_cluster import FaultCluster
from tests.migration.invariants import check_collection
from tests.migration.places import DONOR, RECIPIENT, Place
from tests.migration.stopped import stopped_at
from tests.migration.writers import Writers, writing

SLOW_MILLISECONDS: Final = 1500
BEFORE_COMMIT: Final = Place(f"{DONOR}.shardd", "moveChunkHangAtStep5")


@contextmanager
def slow_reads(cluster: FaultCluster, mongod: str, namespace: str) -> Iterator[None]:
    """Make a mongod slow at every find in a collection."""
    data = {"failCommands": ["find"], "namespace": namespace, "blockConnection": True, "blockTimeMS": SLOW_MILLISECONDS}
    admin = cluster.client(mongod).admin
    admin.command("configureFailPoint", "failCommand", mode="alwaysOn", data=data)
    try:
        yield
    finally:
        admin.command("configureFailPoint", "failCommand", mode="off")


def check_moved(cluster: FaultCluster, namespace: str, writers: Writers) -> None:
    """The middle chunk has moved, and nothing that was written is lost."""
    writers.retry_kept()
    placement = check_collection(cluster, namespace, writers.model)
    assert placement.owner({"key": SPLITS[0]}) == UPPER


def test_recipient_is_released_before_it_has_recovered(cluster: FaultCluster, namespace: str) -> None:
    """The donor commits before the recipient's daemon has read that it is in its critical section."""
    with writing(namespace, cluster.router_addresses) as writers:
        writers.wait_for_progress(60)
        with (
            stopped_at(cluster, namespace, BEFORE_COMMIT) as (point, move),
            slow_reads(cluster, f"{RECIPIENT}.mongod", "config.migrationRecipients"),
        ):
            cluster.kill(f"{RECIPIENT}.shardd")
            cluster.restart(f"{RECIPIENT}.shardd")
            point.turn_off()
            reply = move.wait()
        assert reply is not None
        assert reply["ok"] == 1, reply
        writers.wait_for_progress(60, within=20)
    check_moved(cluster, namespace, writers)


def test_recipient_whose_mongod_stops_while_it_is_released(cluster: FaultCluster, namespace: str) -> None:
    """Its daemon is a secondary's for a while, and then a primary's in the same term."""

    def is_primary() -> bool:
        try:
            return bool(cluster.client(f"{RECIPIENT}.shardd").admin.command("hello")["isWritablePrimary"])
        except AutoReconnect:
            return False

    with writing(namespace, cluster.router_addresses) as writers:
        writers.wait_for_progress(60)
        with stopped_at(cluster, namespace, BEFORE_COMMIT) as (point, move):
            with cluster.paused(f"{RECIPIENT}.mongod"):
                point.turn_off()
                eventually(lambda: not is_primary(), what="the mongod is missed")
            reply = move.wait()
        assert reply is not None
        assert reply["ok"] == 1, reply
        writers.wait_for_progress(60, within=60)
    check_moved(cluster, namespace, writers)


def test_donor_is_slow_to_recover(cluster: FaultCluster, namespace: str) -> None:
    """Until it knows that it was about to commit, it admits no writes."""
    with writing(namespace, cluster.router_addresses) as writers:
        writers.wait_for_progress(60)
        with (
            stopped_at(cluster, namespace, BEFORE_COMMIT) as (_, move),
            slow_reads(cluster, f"{DONOR}.mongod", "config.migrationCoordinators"),
        ):
            cluster.kill(f"{DONOR}.shardd")
            cluster.restart(f"{DONOR}.shardd")
            move.wait()
        writers.wait_for_progress(60, within=20)
    writers.retry_kept()
    check_collection(cluster, namespace, writers.model)
