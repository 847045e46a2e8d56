"""Single documents that change while their range moves."""

from typing import Any

import pytest
from pymongo.errors import OperationFailure

from tests.integration.sharded import LOWER, UPPER, placement
from tests.migration.fault_cluster import FaultCluster
from tests.migration.invariants import check_collection, wait_clean
from tests.migration.places import RECIPIENT, Place, middle_to
from tests.migration.stopped import stopped_at

Document = dict[str, Any]

HELD_AFTER_CLONE = Place(f"{RECIPIENT}.shardd", "migrateThreadHangAtStep4")
HELD_AFTER_CATCH_UP = Place(f"{RECIPIENT}.shardd", "migrateThreadHangAtStep5")


@pytest.mark.parametrize("place", [HELD_AFTER_CLONE, HELD_AFTER_CATCH_UP], ids=["catching up", "steady"])
def test_delete_spares_the_same_id_of_another_range(cluster: FaultCluster, namespace: str, place: Place) -> None:
    """An ``_id`` is unique only on each shard: the document deleted on the donor was never the recipient's."""
    database, _, collection = namespace.partition(".")
    things = cluster.router()[database][collection]
    things.insert_many([{"_id": "same", "key": 700}, {"_id": "other", "key": 400}])
    with stopped_at(cluster, namespace, place) as (point, move):
        things.insert_one({"_id": "same", "key": 450})
        assert things.delete_one({"_id": "same", "key": 450}).deleted_count == 1
        point.turn_off()
        reply = move.wait()
    assert reply is not None
    assert reply["ok"] == 1, reply
    check_collection(cluster, namespace, {"same": {"_id": "same", "key": 700}, "other": {"_id": "other", "key": 400}})


def test_same_id_on_the_recipient_fails_the_move(cluster: FaultCluster, namespace: str) -> None:
    database, _, collection = namespace.partition(".")
    things = cluster.router()[database][collection]
    things.insert_many([{"_id": "same", "key": 700}])
    things.insert_many([{"_id": "same", "key": 400}])
    with pytest.raises(OperationFailure):
        cluster.router().admin.command(middle_to(UPPER, namespace))
    assert placement(cluster.router(), namespace) == [LOWER, LOWER, UPPER]
    assert sorted(document["key"] for document in cluster.router(1)[database][collection].find()) == [400, 700]
    things.delete_one({"_id": "same", "key": 400})
    wait_clean(cluster)
    cluster.router().admin.command(middle_to(UPPER, namespace))
    check_collection(cluster, namespace, {"same": {"_id": "same", "key": 700}})


def test_foreign_documents_on_the_recipient_fail_the_move(cluster: FaultCluster, namespace: str) -> None:
    """Documents written directly to a shard that does not own their range are not mixed with received ones."""
    database, _, collection = namespace.partition(".")
    cluster.router()[database][collection].insert_one({"_id": "own", "key": 400})
    stored = cluster.client(f"{RECIPIENT}.mongod")[database][collection]
    stored.insert_one({"_id": "stranger", "key": 450})
    with pytest.raises(OperationFailure):
        cluster.router().admin.command(middle_to(UPPER, namespace))
    assert placement(cluster.router(), namespace) == [LOWER, LOWER, UPPER]


def test_ping_pong_with_deletes(cluster: FaultCluster, namespace: str) -> None:
    """Documents that have just been deleted from a shard move back to it."""
    database, _, collection = namespace.partition(".")
    things = cluster.router()[database][collection]
    model: dict[int, Document] = {n: {"_id": n, "key": 300 + n % 300, "text": "x" * 200} for n in range(3000)}
    things.insert_many(model.values())
    for turn in range(6):
        cluster.router(turn % 2).admin.command(middle_to(UPPER if turn % 2 == 0 else LOWER, namespace))
        identity = turn * 7
        document = model.pop(identity)
        assert things.delete_one({"_id": identity, "key": document["key"]}).deleted_count == 1
        changed = things.update_many({"key": {"$gte": 300, "$lt": 350}}, {"$inc": {"turn": 1}})
        matched = [each for each in model.values() if each["key"] < 350]
        assert changed.modified_count == len(matched)
        for each in matched:
            each["turn"] = each.get("turn", 0) + 1
    check_collection(cluster, namespace, model)
