"""Commits of transactions on two shards, as a router requests them from the coordinator's daemon."""

from collections.abc import Iterator

import pytest

from tests.fail_points import fail_point
from tests.shardd.mini_cluster import MiniCluster
from tests.shardd.two_phase_commit.hand_made_transaction import (
    HandMadeTransaction,
    create_collections,
    documents,
    transaction,
    without_gossip,
)

ABORTED = {
    "ok": 0.0,
    "errmsg": "Recovering the transaction's outcome found the transaction aborted",
    "code": 251,
    "codeName": "NoSuchTransaction",
    "errorLabels": ["TransientTransactionError"],
}


@pytest.fixture
def txn(mini: MiniCluster, db: str) -> Iterator[HandMadeTransaction]:
    """A transaction that has begun nowhere yet."""
    create_collections(mini, db)
    with transaction(mini, db) as made:
        yield made


def test_a_transaction_on_two_shards_commits_on_both_at_one_time(mini: MiniCluster, txn: HandMadeTransaction) -> None:
    txn.insert("sh0", "sh1")
    assert txn.commit() == {"ok": 1.0}
    assert [txn.is_visible(shard) for shard in ("sh0", "sh1")] == [True, True]
    assert documents(mini.kept_client(mini.shards["sh0"].members[0])) == []


def test_the_document_has_the_form_that_it_has_in_mongodb(mini: MiniCluster, txn: HandMadeTransaction) -> None:
    txn.insert("sh0", "sh1")
    client = mini.kept_client(mini.shards["sh0"].members[0])
    with fail_point(client, "hangBeforeWritingDecision") as point, txn.committing() as connection:
        point.wait_entered()
        (listed,) = documents(client)
        with fail_point(client, "hangBeforeDeletingCoordinatorDoc") as end:
            point.turn_off()
            end.wait_entered()
            (decided,) = documents(client)
        assert without_gossip(connection.receive_reply()) == {"ok": 1.0}
    assert list(listed) == ["_id", "participants"]
    assert list(listed["_id"]) == ["lsid", "txnNumber"]
    assert list(listed["_id"]["lsid"]) == ["id", "uid"]
    assert listed["participants"] == ["sh0", "sh1"]
    assert list(decided) == ["_id", "participants", "decision"]
    assert list(decided["decision"]) == ["decision", "commitTimestamp"]


def test_a_commit_is_answered_again_after_its_coordinator_has_ended(txn: HandMadeTransaction) -> None:
    txn.insert("sh0", "sh1")
    assert [txn.commit(), txn.commit(), txn.commit([]), txn.commit([], shard="sh1")] == [{"ok": 1.0}] * 4


def test_a_number_that_cannot_be_started_again_is_not_committed_again(txn: HandMadeTransaction) -> None:
    txn.insert("sh0", "sh1")
    assert txn.commit() == {"ok": 1.0}
    start = {"find": "c", "startTransaction": True, "coordinator": True}
    assert txn.send("sh0", start, db=txn.db)["code"] == 117
    assert txn.commit() == {"ok": 1.0}


def test_an_equal_request_joins_a_commit_under_way(mini: MiniCluster, txn: HandMadeTransaction) -> None:
    txn.insert("sh0", "sh1")
    client = mini.kept_client(mini.shards["sh0"].members[0])
    with fail_point(client, "hangBeforeWritingDecision") as point, txn.committing() as first:
        point.wait_entered()
        with txn.committing() as second, txn.committing([]) as third:
            point.turn_off()
            assert [without_gossip(each.receive_reply()) for each in (first, second, third)] == [{"ok": 1.0}] * 3


def test_a_participant_that_has_aborted_aborts_all(mini: MiniCluster, txn: HandMadeTransaction) -> None:
    txn.insert("sh0", "sh1")
    assert txn.send("sh1", {"abortTransaction": 1}) == {"ok": 1.0}
    reply = txn.commit()
    assert reply["errmsg"].startswith("Transaction was aborted :: caused by :: from shard sh1 :: caused by :: ")
    assert reply == {**ABORTED, "errmsg": reply["errmsg"]}
    assert not txn.is_visible("sh0")
    assert txn.commit() == ABORTED


def test_the_outcome_of_a_commit_that_has_not_begun_is_that_it_is_aborted(txn: HandMadeTransaction) -> None:
    txn.insert("sh0", "sh1")
    assert txn.commit([]) == ABORTED
    assert txn.commit() == ABORTED
    assert txn.send("sh1", {"abortTransaction": 1}) == {"ok": 1.0}


def test_a_shard_that_expects_no_commit_aborts_a_transaction_that_is_in_progress(txn: HandMadeTransaction) -> None:
    txn.insert("sh0", "sh1")
    assert txn.commit(shard="sh1") == ABORTED
    assert txn.commit()["code"] == 251


def test_a_newer_transaction_of_the_session_ends_the_wait_for_a_commit(
    mini: MiniCluster, db: str, txn: HandMadeTransaction
) -> None:
    txn.insert("sh0", "sh1")
    with transaction(mini, db, lsid=txn.lsid, number=2) as newer:
        newer.insert("sh0", "sh1")
        assert txn.commit()["code"] == 225
        assert newer.commit() == {"ok": 1.0}


def test_an_unknown_shard_votes_to_abort(txn: HandMadeTransaction) -> None:
    txn.insert("sh0", "sh1")
    reply = txn.commit(["sh0", "sh1", "sh7"])
    assert reply["code"] == 70
    assert not txn.is_visible("sh0")
    assert not txn.is_visible("sh1")
