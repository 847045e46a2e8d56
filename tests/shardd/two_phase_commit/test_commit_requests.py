"""Requests to commit that are malformed or special, answered as a genuine shard does, and what the daemon reports."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.fail_points import fail_point
from tests.shardd.mini_cluster import Client, MiniCluster
from tests.shardd.two_phase_commit.hand_made_transaction import (
    HandMadeTransaction,
    create_collections,
    transaction,
    without_gossip,
)

NAME = "coordinateCommitTransaction"
SHOWN: list[dict[str, Any]] = [
    {"$currentOp": {"allUsers": True}},
    {"$match": {"twoPhaseCommitCoordinator": {"$exists": True}}},
]


@pytest.fixture
def txn(mini: MiniCluster, db: str) -> Iterator[HandMadeTransaction]:
    """A transaction that has written on both shards."""
    create_collections(mini, db)
    with transaction(mini, db) as made:
        made.insert("sh0", "sh1")
        yield made


@pytest.fixture
def coordinator(mini: MiniCluster) -> Client:
    """A client of the coordinator's daemon."""
    return mini.kept_client(mini.shards["sh0"].members[0])


MALFORMED: list[tuple[Any, int, str]] = [
    (5, 14, f"BSON field '{NAME}.participants' is the wrong type 'int', expected type 'array'"),
    ([5], 14, f"BSON field '{NAME}.participants.0' is the wrong type 'int', expected type 'object'"),
    ([{"shardId": 5}], 14, f"BSON field '{NAME}.participants.shardId' is the wrong type 'int', expected type 'string'"),
    ([{}], 40414, f"BSON field '{NAME}.participants.shardId' is missing but a required field"),
    ([{"shardId": "sh0", "x": 1}], 40415, f"BSON field '{NAME}.participants.x' is an unknown field."),
    ([{"shardId": "sh0"}] * 2, 51162, "Participant list contains duplicate shard sh0"),
]


def test_malformed_requests_leave_the_transaction_as_it_was(txn: HandMadeTransaction) -> None:
    for participants, code, message in MALFORMED:
        reply = txn.send("sh0", {NAME: 1, "participants": participants})
        assert (reply["code"], reply["errmsg"]) == (code, message)
    assert txn.send("sh0", {NAME: 1})["code"] == 40414
    assert txn.send("sh0", txn.commit_command(), db="test")["code"] == 13
    assert txn.commit() == {"ok": 1.0}


def test_a_request_without_a_transaction_is_refused(txn: HandMadeTransaction) -> None:
    whole = dict(txn.fields)
    del txn.fields["autocommit"]
    assert txn.commit()["code"] == 50768
    del txn.fields["txnNumber"]
    assert txn.commit()["code"] == 125
    del txn.fields["lsid"]
    assert txn.commit()["code"] == 125
    txn.fields = whole
    assert txn.commit() == {"ok": 1.0}


def test_a_write_concern_that_cannot_be_satisfied_is_reported_with_the_commit(txn: HandMadeTransaction) -> None:
    for _ in range(2):
        reply = txn.commit(writeConcern={"w": 5, "wtimeout": 100})
        assert reply["ok"] == 1.0
        assert reply["writeConcernError"]["code"] == 100


def test_the_time_limit_is_mongods(coordinator: Client, txn: HandMadeTransaction) -> None:
    def seconds_left(made: HandMadeTransaction) -> float:
        with fail_point(coordinator, "hangBeforeSendingPrepare") as point, made.committing() as connection:
            point.wait_entered()
            (operation,) = coordinator.admin.aggregate(SHOWN)
            point.turn_off()
            connection.receive_reply()
        shown = operation["twoPhaseCommitCoordinator"]
        return float((shown["deadline"] - shown["commitStartTime"]).total_seconds())

    assert seconds_left(txn) <= 61  # two clocks
    coordinator.admin.command("setParameter", 1, transactionLifetimeLimitSeconds=600)
    try:
        with transaction(txn.cluster, txn.db) as long:
            long.insert("sh0", "sh1")
            assert seconds_left(long) > 61
    finally:
        coordinator.admin.command("setParameter", 1, transactionLifetimeLimitSeconds=60)


def test_another_participant_waits_for_the_decision_of_a_prepared_transaction(
    txn: HandMadeTransaction, coordinator: Client
) -> None:
    with fail_point(coordinator, "hangBeforeWritingDecision") as point, txn.committing() as first:
        point.wait_entered()
        waiting = txn.commit([], shard="sh1", maxTimeMS=200)
        assert waiting["code"] == 50
        with txn.committing() as second:
            point.turn_off()
            assert [without_gossip(each.receive_reply()) for each in (first, second)] == [{"ok": 1.0}] * 2
    assert txn.commit([], shard="sh1") == {"ok": 1.0}


def test_a_newer_transaction_of_the_session_waits_for_the_end_of_a_prepared_one(
    mini: MiniCluster, db: str, txn: HandMadeTransaction, coordinator: Client
) -> None:
    with fail_point(coordinator, "hangBeforeWritingDecision") as point, txn.committing() as first:
        point.wait_entered()
        with transaction(mini, db, lsid=txn.lsid, number=2) as newer:
            insert = {"insert": "c", "documents": [{}], "startTransaction": True, "maxTimeMS": 300}
            assert newer.send("sh1", insert, db=db)["code"] == 50
        point.turn_off()
        assert without_gossip(first.receive_reply()) == {"ok": 1.0}


def test_killed_sessions_lose_what_is_not_prepared(
    mini: MiniCluster, txn: HandMadeTransaction, coordinator: Client
) -> None:
    with mini.shard_client("sh1") as client:
        client.admin.command({"killSessions": [txn.lsid]})
    assert txn.commit()["code"] == 251
    assert not txn.is_visible("sh0")


def test_a_commit_under_way_is_shown(txn: HandMadeTransaction, coordinator: Client) -> None:
    with fail_point(coordinator, "hangBeforeDeletingCoordinatorDoc") as point, txn.committing() as connection:
        point.wait_entered()
        (operation,) = coordinator.admin.aggregate(SHOWN)
        by_command = coordinator.admin.command("currentOp", desc="transaction coordinator")["inprog"]
        status = coordinator.admin.command("serverStatus")["twoPhaseCommitCoordinator"]
        point.turn_off()
        connection.receive_reply()
    assert len(by_command) == 1
    assert operation["desc"] == "transaction coordinator"
    shown = operation["twoPhaseCommitCoordinator"]
    assert list(shown) == [
        *("lsid", "txnNumber", "txnRetryCounter", "numParticipants", "state", "commitStartTime"),
        *("hasRecoveredFromFailover", "stepDurations", "decision", "deadline"),
    ]
    assert (shown["state"], shown["numParticipants"]) == ("deletingCoordinatorDoc", 2)
    assert set(shown["stepDurations"]) == {
        *("writingParticipantListMicros", "waitingForVotesMicros", "writingDecisionMicros"),
        *("waitingForDecisionAcksMicros", "deletingCoordinatorDocMicros", "totalCommitDurationMicros"),
    }
    assert status["currentInSteps"] == {
        **dict.fromkeys(("writingParticipantList", "waitingForVotes", "writingDecision", "waitingForDecisionAcks"), 0),
        "deletingCoordinatorDoc": 1,
    }


@pytest.mark.parametrize(
    ("place", "state"),
    [
        ("hangBeforeWritingParticipantList", "writingParticipantList"),
        ("hangBeforeSendingPrepare", "waitingForVotes"),
        ("hangBeforeWritingDecision", "writingDecision"),
        ("hangBeforeSendingCommit", "waitingForDecisionAck"),
    ],
)
def test_the_state_of_a_commit_has_the_name_of_a_genuine_shard(
    txn: HandMadeTransaction, coordinator: Client, place: str, state: str
) -> None:
    with fail_point(coordinator, place) as point, txn.committing() as connection:
        point.wait_entered()
        (operation,) = coordinator.admin.aggregate(SHOWN)
        point.turn_off()
        assert without_gossip(connection.receive_reply()) == {"ok": 1.0}
    assert operation["twoPhaseCommitCoordinator"]["state"] == state


def test_commits_are_counted(txn: HandMadeTransaction, coordinator: Client) -> None:
    def counters() -> dict[str, int]:
        status = coordinator.admin.command("serverStatus")["twoPhaseCommitCoordinator"]
        return {name: value for name, value in status.items() if name.startswith("total")}

    before = counters()
    assert txn.commit() == {"ok": 1.0}
    after = counters()
    changes = {name: after[name] - before[name] for name in after}
    assert changes == {
        "totalCreated": 0,  # counted when the transaction began
        "totalStartedTwoPhaseCommit": 1,
        "totalAbortedTwoPhaseCommit": 0,
        "totalCommittedTwoPhaseCommit": 1,
    }
    without = coordinator.admin.command("serverStatus", twoPhaseCommitCoordinator=0)
    assert "twoPhaseCommitCoordinator" not in without
