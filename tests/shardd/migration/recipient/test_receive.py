"""Receiving a range: clone, catch-up and commit; or the migration is refused or aborted."""

from typing import Any

import bson
import pytest
from bson import Int64, MaxKey, MinKey
from bson.binary import Binary

from tests.fail_points import fail_point
from tests.shardd.migration.recipient.conftest import Receive
from tests.shardd.migration.recipient.receiving import Receiving, documents, held


def received_until_steady(receiving: Receiving) -> dict[str, Any]:
    assert receiving.start() == {"started": True, "ok": 1.0}
    return receiving.wait_state("steady", "fail", "abort")


def test_a_range_is_received(receiving: Receiving) -> None:
    receiving.donor.documents = documents(5_500, padding="x" * 100)
    status = received_until_steady(receiving)
    size = sum(len(bson.encode(each)) for each in receiving.donor.documents)
    assert status == {
        "active": True,
        "sessionId": receiving.session_id,
        "ns": receiving.namespace,
        "from": receiving.donor.connection_string,
        "fromShardId": "donor",
        "min": {"a": 0},
        "max": {"a": 100_000},
        "shardKeyPattern": {"a": 1},
        "supportsCriticalSectionDuringCatchUp": True,
        "state": "steady",
        "counts": {"cloned": 5_500, "clonedBytes": size, "catchup": 0, "steady": 0},
        "ok": 1.0,
    }
    assert receiving.stored() == receiving.donor.documents
    assert receiving.commit()["state"] == "enteredCriticalSection"
    assert receiving.release() == {"ok": 1.0}
    done = receiving.status()
    assert (done["state"], done["active"]) == ("done", False)
    assert receiving.finish("committed") == {"ok": 1.0}
    assert receiving.range_deletion() is None
    assert receiving.checkpoint() is None


def test_persisted_documents_have_the_genuine_form(receiving: Receiving) -> None:
    """As observed on a recipient of MongoDB 6.0.5."""
    receiving.donor.documents = documents(3)
    received_until_steady(receiving)
    task = receiving.range_deletion()
    assert task is not None
    timestamp = task.pop("timestamp", None)
    assert task == {
        "_id": Binary.from_uuid(receiving.migration_id),
        "nss": receiving.namespace,
        "collectionUuid": Binary.from_uuid(receiving.donor.uuid),
        "donorShardId": "donor",
        "range": receiving.range,
        "pending": True,
        "whenToClean": "now",
        "numOrphanDocs": 3,
    }
    assert timestamp is not None
    assert receiving.config("migrationRecipients") == receiving.config("collection_critical_sections") == []
    receiving.commit()
    (recipient,) = receiving.config("migrationRecipients")
    assert "id" in recipient.pop("lsid")  # that of the test's own client
    assert recipient == {
        "_id": Binary.from_uuid(receiving.migration_id),
        "nss": receiving.namespace,
        "migrationSessionId": receiving.session_id,
        "range": receiving.range,
        "donorShardIdForLoggingPurposesOnly": "donor",
        "txnNumber": Int64(1),
    }
    (section,) = receiving.config("collection_critical_sections")
    assert section == {
        "_id": receiving.namespace,
        "reason": {"recvChunk": 1, "sessionId": receiving.session_id},
        "blockReads": True,
    }
    receiving.release()
    assert receiving.config("migrationRecipients") == receiving.config("collection_critical_sections") == []


def test_the_changelog_records_every_step(receiving: Receiving) -> None:
    received_until_steady(receiving)
    receiving.commit()
    receiving.release()
    config = receiving.cluster.kept_client(receiving.cluster.config.members[0]).config
    (entry,) = receiving.wait(
        lambda: list(config.changelog.find({"what": "moveChunk.to", "ns": receiving.namespace})), bool
    )
    details = entry["details"]
    assert list(details) == [*(f"step {step} of 8" for step in range(1, 9)), "min", "max", "to", "from", "note"]
    assert [details[name] for name in ("min", "max", "to", "from", "note")] == [
        {"a": 0},
        {"a": 100_000},
        "sh0",
        "donor",
        "success",
    ]


def test_a_repeated_request_joins_the_migration(receiving: Receiving) -> None:
    with held(receiving.donor, "_migrateClone"):
        first = receiving.start()
        assert receiving.start(session_id=receiving.session_id) == first == {"started": True, "ok": 1.0}
    receiving.wait_state("steady")
    assert len(receiving.donor.received("listCollections")) == 2  # before and after the first batch


def test_another_migration_is_refused_meanwhile(receive: Receive) -> None:
    one, other = receive(), receive()
    with held(one.donor, "_migrateClone"):
        one.start()
        refused = other.start()
        assert refused["codeName"] == "ConflictingOperationInProgress"
        assert "currently receiving chunk [{ a: 0 }, { a: 100000 })" in refused["errmsg"]
    one.wait_state("steady")
    one.abort()
    assert other.start()["ok"]


def test_a_commit_before_steady_is_refused(receiving: Receiving) -> None:
    with held(receiving.donor, "_migrateClone"):
        receiving.start()
        refused = receiving.commit()
        assert refused["code"] == 125
        assert refused["errmsg"] == (
            "Migration startCommit attempted when not in STEADY state. Sender's session is "
            f"{receiving.session_id}. Current session is {receiving.session_id}"
        )
    receiving.wait_state("steady")
    session_id, receiving.session_id = receiving.session_id, "donor_sh0_5f0000000000000000000000"
    assert receiving.commit()["errmsg"].endswith(f"Current session is {session_id}")
    receiving.session_id = session_id


def test_existing_documents_in_the_range_fail_it(receiving: Receiving) -> None:
    receiving.donor.documents = documents(3)
    with receiving.mongod() as client:
        client[receiving.db].create_collection("c")
        client[receiving.db].c.create_index("a")
        receiving.donor.uuid = receiving.uuid_here()
        client[receiving.db].c.insert_one({"_id": "old", "a": 50})
    status = received_until_steady(receiving)
    assert status["state"] == "fail"
    assert "this shard holds documents in it" in status["errmsg"]
    assert status["errmsg"].startswith("migrate failed: OperationFailed: ")
    assert receiving.stored() == [{"_id": "old", "a": 50}]
    assert receiving.range_deletion() is None


def test_a_document_of_another_range_with_the_same_id_fails_it(receiving: Receiving) -> None:
    receiving.donor.documents = documents(10)
    with fail_point(receiving.client, "migrateThreadHangAtStep3") as point:
        receiving.start()
        point.wait_entered()
        with receiving.mongod() as client:
            client[receiving.db].c.insert_one({"_id": 5, "a": -5})
    status = receiving.wait_state("fail")
    assert "local document { _id: 5, a: -5 } has same _id as cloned remote document { _id: 5 }" in status["errmsg"]
    assert receiving.stored() == [{"_id": 5, "a": -5}]


def test_an_abort_leaves_the_range_to_the_range_deleter(receiving: Receiving) -> None:
    receiving.donor.documents = documents(10)
    received_until_steady(receiving)
    aborted = receiving.abort()
    assert (aborted["state"], aborted["active"]) == ("abort", False)
    task = receiving.range_deletion()
    assert task is not None
    assert task["pending"]
    assert receiving.finish("aborted") == {"ok": 1.0}
    # There is nothing to delete in a collection that the catalog does not know.
    receiving.wait(receiving.range_deletion, lambda task: task is None)
    assert receiving.checkpoint() is None
    assert receiving.finish("aborted") == {"ok": 1.0}


def test_the_catch_up_ends_although_every_batch_has_a_change(receiving: Receiving) -> None:
    receiving.donor.documents = documents(10)
    receiving.donor.modifications = [((), receiving.donor.documents[:1])] * 100_000
    status = received_until_steady(receiving)
    assert (status["state"], status["counts"]["catchup"] > 0) == ("steady", True)
    assert receiving.donor.modifications
    receiving.donor.modifications.clear()
    assert receiving.commit()["state"] == "enteredCriticalSection"
    assert receiving.release() == {"ok": 1.0}


def test_an_abort_while_cloning_ends_it_at_once(receiving: Receiving) -> None:
    receiving.donor.documents = documents(5_000)
    with held(receiving.donor, "_transferMods"):
        receiving.start()
        receiving.wait_state("catchup")
        assert receiving.abort()["state"] == "abort"
    assert receiving.release() == {"ok": 1.0}


@pytest.mark.parametrize(
    ("key", "low", "high", "inside", "outside"),
    [
        ({"a": 1}, 0, 10, [0, 9.5], [-1, 10]),
        ({"a": 1}, MinKey(), 0, [None, -1], [0]),
        ({"a": 1}, 0, MaxKey(), [0, "x", MaxKey()], [-1]),
        ({"a": "hashed"}, MinKey(), MaxKey(), [1, "x", None], []),
    ],
)
def test_modifications_never_touch_documents_of_another_range(
    receive: Receive, key: dict[str, Any], low: object, high: object, inside: list[object], outside: list[object]
) -> None:
    receiving = receive(key=key, low=low, high=high)
    donor = receiving.donor
    donor.indexes = [{"v": 2, "key": key, "name": "key"}]
    donor.documents = [{"_id": position, "a": value} for position, value in enumerate(inside)]
    received_until_steady(receiving)
    with receiving.mongod() as client:
        others = [{"_id": 100 + position, "a": value} for position, value in enumerate(outside)]
        if others:
            client[receiving.db].c.insert_many(others)
    donor.modifications.append(([0, *(each["_id"] for each in others), "gone"], [{"_id": 50, "a": inside[0]}]))
    receiving.wait(lambda: donor.modifications, lambda left: not left)
    assert receiving.commit()["ok"]
    assert receiving.stored() == [*donor.documents[1:], {"_id": 50, "a": inside[0]}, *others]
    assert receiving.status()["counts"]["steady"] == 3 + len(others)


def test_modifications_of_documents_outside_the_range_are_ignored(receive: Receive) -> None:
    """MongoDB's donors hand out the new version of a document that has left the range; ours report it as deleted."""
    receiving = receive(high=10)
    receiving.donor.documents = documents(2)
    receiving.donor.modifications = [([], [{"_id": 0, "a": 10}, {"_id": 2, "a": 2}])]
    assert received_until_steady(receiving)["state"] == "steady"
    assert receiving.stored() == [{"_id": 1, "a": 1}, {"_id": 2, "a": 2}]


def test_a_modification_outside_the_range_may_fail_it(receive: Receive) -> None:
    receiving = receive(high=10)
    receiving.donor.modifications = [([], [{"_id": 0, "a": 10}])]
    with fail_point(receiving.client, "failMigrationReceivedOutOfRangeOperation"):
        status = received_until_steady(receiving)
    assert status["state"] == "fail"
    assert "Migration received a document out of range: { _id: 0, a: 10 } is not in" in status["errmsg"]


def test_modifications_replace_documents(receiving: Receiving) -> None:
    donor = receiving.donor
    donor.documents = documents(5, version=1)
    donor.modifications = [([1], [{"_id": 2, "a": 2, "version": 2}]), ([], [{"_id": 1, "a": 40}, {"_id": 2, "a": 41}])]
    status = received_until_steady(receiving)
    assert status["counts"]["catchup"] == 4
    assert receiving.stored() == [
        {"_id": 0, "a": 0, "version": 1},
        {"_id": 1, "a": 40},
        {"_id": 2, "a": 41},
        {"_id": 3, "a": 3, "version": 1},
        {"_id": 4, "a": 4, "version": 1},
    ]


def test_unique_values_may_change_hands(receiving: Receiving) -> None:
    """While cloning, within a batch of modifications, and from one batch to the next."""
    donor = receiving.donor
    donor.indexes = [*donor.indexes, {"v": 2, "key": {"a": 1, "u": 1}, "name": "unique", "unique": True}]
    # The scan read 2 and 3 after they had taken the values that 0 and 1 had when it read those.
    donor.documents = [{"_id": number, "a": 7, "u": number % 2} for number in range(4)]
    donor.modifications = [
        ([0], [{"_id": 2, "a": 7, "u": 0}]),
        ([], [{"_id": 1, "a": 7, "u": 5}, {"_id": 3, "a": 7, "u": 1}]),
        ([], [{"_id": 2, "a": 7, "u": 1}]),  # which 3 has until the next batch
        ([], [{"_id": 3, "a": 7, "u": 0}]),
    ]
    assert received_until_steady(receiving)["state"] == "steady"
    assert receiving.commit()["ok"]
    assert receiving.stored() == [
        {"_id": 1, "a": 7, "u": 5},
        {"_id": 2, "a": 7, "u": 1},
        {"_id": 3, "a": 7, "u": 0},
    ]


def test_a_unique_value_that_stays_in_use_fails_the_commit(receiving: Receiving) -> None:
    donor = receiving.donor
    donor.indexes = [*donor.indexes, {"v": 2, "key": {"a": 1, "u": 1}, "name": "unique", "unique": True}]
    donor.documents = [{"_id": number, "a": 7, "u": 0} for number in range(2)]
    received_until_steady(receiving)
    refused = receiving.commit()
    assert refused["code"] == 125
    status = receiving.wait_state("fail")
    assert "DuplicateKey" in status["errmsg"]
    assert receiving.config("migrationRecipients") == receiving.config("collection_critical_sections") == []


def test_a_lost_reply_is_requested_again(receiving: Receiving) -> None:
    donor = receiving.donor
    donor.documents = documents(2_500)
    received_until_steady(receiving)
    numbers = [command["number"] for command in donor.received("_migrateClone")]
    assert numbers == [0, 1, 2, 3]
    mods = [command["number"] for command in donor.received("_transferMods")]
    assert mods == list(range(len(mods)))


def test_secondary_throttle_in_a_set_of_one(receiving: Receiving) -> None:
    receiving.donor.documents = documents(10)
    receiving.start(secondaryThrottle=True, writeConcern={"w": 5})
    assert "UnsatisfiableWriteConcern" in receiving.wait_state("fail")["errmsg"]
    receiving.finish("aborted")
    receiving.start(secondaryThrottle=True, writeConcern={"w": "majority"})
    assert receiving.wait_state("steady", "fail")["state"] == "steady"


def test_idle_status_and_waiting(receiving: Receiving) -> None:
    receiving.start()
    receiving.wait_state("steady")
    assert receiving.status(wait=True)["waited"] is True
    assert "waited" not in receiving.status()


def test_it_waits_for_a_range_that_may_hold_orphans(receive: Receive) -> None:
    """Whether they will be deleted is not decided yet; after a while it stops waiting."""
    former, receiving = receive(), receive(low=99_999, high=200_000)
    receiving.namespace, receiving.db = former.namespace, former.db
    received_until_steady(former)
    former.abort()
    former.client.admin.command({"setParameter": 1, "receiveChunkWaitForRangeDeleterTimeoutMS": 500})
    try:
        receiving.start()
        status = receiving.wait_state("steady", "fail")
    finally:
        former.client.admin.command({"setParameter": 1, "receiveChunkWaitForRangeDeleterTimeoutMS": 10_000})
    assert status["errmsg"] == (
        f"migrate failed: ExceededTimeLimit: Failed to delete orphaned {receiving.namespace} range "
        "[{ a: 99999 }, { a: 200000 }) :: caused by :: operation exceeded time limit"
    )
    receiving.start()
    former.finish("committed")
    assert receiving.wait_state("steady", "fail")["state"] == "steady"


def test_a_drop_aborts_it(receiving: Receiving) -> None:
    receiving.donor.documents = documents(100)
    received_until_steady(receiving)
    drop = {"_shardsvrDropCollectionParticipant": "c", "fromMigrate": True}
    assert receiving.client[receiving.db].command(drop)["ok"] == 1.0
    assert receiving.status()["state"] == "abort"
    with receiving.mongod() as client:
        assert client[receiving.db].list_collection_names() == []
