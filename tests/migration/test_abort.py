"""Migrations that are aborted from outside before they commit."""

import pytest

from tests.integration.sharded import LOWER, UPPER, changes, placement
from tests.migration.fault_cluster import FaultCluster
from tests.migration.moving import moving
from tests.migration.outcome import check_outcome
from tests.migration.places import ABORTABLE_PLACES, Place, middle_to
from tests.migration.stopped import stopped_at
from tests.migration.writers import writing


@pytest.mark.matrix(share=0.7)
@pytest.mark.parametrize("how", ["migrations are forbidden", "operation is killed"])
@pytest.mark.parametrize("place", ABORTABLE_PLACES, ids=lambda place: place.name)
def test_abort(cluster: FaultCluster, namespace: str, place: Place, how: str) -> None:
    check_abort = check_migrations_are_forbidden if how == "migrations are forbidden" else check_operation_is_killed
    check_abort(cluster, namespace, place)


def check_migrations_are_forbidden(cluster: FaultCluster, namespace: str, place: Place) -> None:
    """``setAllowMigrations`` aborts a migration that has not reached its commit, and waits for that."""
    routers, admin = cluster.router_addresses, cluster.router(1).admin
    with writing(namespace, routers) as writers:
        writers.wait_for_progress(60)
        with (
            stopped_at(cluster, namespace, place) as (point, move),
            moving(routers[1], {"setAllowMigrations": namespace, "allowMigrations": False}) as forbidding,
        ):
            reply = move.wait()
            point.turn_off()
            assert forbidding.wait() == forbidding.reply
            assert forbidding.reply is not None
            assert forbidding.reply["ok"] == 1, forbidding.reply
        assert reply is not None
        assert reply["ok"] == 0, reply
        assert placement(cluster.router(), namespace) == [LOWER, LOWER, UPPER]
        writers.wait_for_progress(60)
        with moving(routers[0], middle_to(UPPER, namespace)) as move:
            refused = move.wait()
        assert refused is not None
        assert (refused["ok"], refused["code"]) == (0, 117), refused
        admin.command("setAllowMigrations", namespace, allowMigrations=True)
    check_outcome(cluster, namespace, writers)
    assert len(changes(cluster.router(), namespace, "moveChunk.commit")) >= 1


def check_operation_is_killed(cluster: FaultCluster, namespace: str, place: Place) -> None:
    """``killOp`` with the id that ``currentOp`` shows for the donor's migration."""
    routers, admin = cluster.router_addresses, cluster.router(1).admin
    with writing(namespace, routers) as writers:
        writers.wait_for_progress(60)
        with stopped_at(cluster, namespace, place) as (point, move):
            running = admin.command("currentOp", {"$all": True}, ns=namespace)["inprog"]
            found = [each for each in running if "moveRange" in str(each.get("command")) and each["shard"] == LOWER]
            assert len(found) == 1, running
            admin.command("killOp", 1, op=found[0]["opid"])
            reply = move.wait()
            point.turn_off()
        assert reply is not None
        assert (reply["ok"], reply["code"]) == (0, 11601), reply
        writers.wait_for_progress(60)
    check_outcome(cluster, namespace, writers)
