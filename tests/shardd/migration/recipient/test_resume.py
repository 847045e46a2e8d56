"""A clone that was cut off resumes from its checkpoint, if both sides remember the same attempts."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from bson import ObjectId, Timestamp

from tests.shardd.migration.recipient.receiving import Receiving, documents, held

TOTAL = 20_000
BATCH = 1_000
HALFWAY = 6
"""Number of batches that arrive before the next one is held back."""


@contextmanager
def stopped_halfway(receiving: Receiving) -> Iterator[dict[str, Any]]:
    """Stop the clone after a checkpoint, while it waits for its next batch; yield the checkpoint."""
    donor = receiving.donor
    donor.documents, donor.batch_documents, donor.batches_before_hold = documents(TOTAL), BATCH, HALFWAY
    with held(donor, "_migrateClone"):
        receiving.start()
        receiving.wait(lambda: len(donor.received("_migrateClone")), lambda count: count > HALFWAY)
        seen = receiving.wait(receiving.checkpoint, lambda each: each is not None and each["clonedUpTo"] is not None)
        yield seen


def restart_daemon(receiving: Receiving) -> None:
    receiving.member.restart(receiving.member.daemon)


def restart_mongod(receiving: Receiving) -> None:
    receiving.member.restart(receiving.member.mongod)


@pytest.mark.parametrize("restart", [restart_daemon, restart_mongod])
def test_it_resumes_after_a_restart(receiving: Receiving, restart: Any) -> None:  # noqa: ANN401 - one of the above
    with stopped_halfway(receiving):
        restart(receiving)
    checkpoint = receiving.checkpoint()
    assert checkpoint is not None
    key = checkpoint["clonedUpTo"]
    assert 0 < key["a"] < TOTAL
    assert checkpoint["oplogPosition"] == Timestamp(1, 1)
    assert checkpoint["counts"]["cloned"] == key["a"]  # all below the key
    receiving.donor.commands.clear()
    with held(receiving.donor, "_migrateClone"):
        reply = receiving.start()
        assert reply == {"started": True, "resumeFrom": {"key": key, "position": Timestamp(1, 1)}, "ok": 1.0}
        receiving.donor.from_key = key["a"]
    status = receiving.wait_state("steady", "fail")
    assert status["counts"]["cloned"] == TOTAL
    assert receiving.stored() == receiving.donor.documents
    assert len(receiving.donor.received("_migrateClone")) <= (TOTAL - key["a"]) // BATCH + 3
    ended = receiving.checkpoint()
    assert ended is not None
    assert [each["sessionId"] for each in ended["attempts"]] == [each["sessionId"] for each in receiving.attempts]
    assert sum(each["documents"] for each in ended["attempts"]) == ended["counts"]["cloned"] == TOTAL - 1
    receiving.commit()
    receiving.release()
    receiving.finish("committed")
    assert receiving.checkpoint() is None


def test_another_attempt_replaces_one_under_way(receiving: Receiving) -> None:
    """The donor was restarted, which the recipient need not have noticed."""
    with stopped_halfway(receiving) as checkpoint:
        former = receiving.session_id
        reply = receiving.start()
        assert reply["resumeFrom"]["key"]["a"] >= checkpoint["clonedUpTo"]["a"]
        receiving.donor.from_key = reply["resumeFrom"]["key"]["a"]
        assert receiving.status()["sessionId"] == receiving.session_id != former
    receiving.wait_state("steady")
    assert receiving.stored() == receiving.donor.documents


def test_a_history_that_the_donor_does_not_share_is_not_trusted(receiving: Receiving) -> None:
    with stopped_halfway(receiving):
        receiving.abort()
    receiving.attempts = [{**receiving.attempts[0], "sessionId": f"donor_sh0_{ObjectId()}"}]
    assert receiving.start() == {"started": True, "ok": 1.0}
    receiving.wait_state("steady")
    assert receiving.stored() == receiving.donor.documents
    checkpoint = receiving.checkpoint()
    assert checkpoint is not None
    assert [each["sessionId"] for each in checkpoint["attempts"]] == [receiving.session_id]


def test_attempts_that_never_arrived_do_not_matter(receiving: Receiving) -> None:
    with stopped_halfway(receiving):
        receiving.abort()
    receiving.attempts.append({**receiving.attempts[0], "sessionId": f"donor_sh0_{ObjectId()}"})
    assert "resumeFrom" in receiving.start()


def test_it_resumes_after_modifications(receiving: Receiving) -> None:
    """The position is the last applied modification's; documents below the key are kept."""
    donor = receiving.donor
    donor.documents = documents(100)
    donor.modifications = [([5], [{"_id": 200, "a": 7.5}])]
    receiving.start()
    receiving.wait_state("steady")
    receiving.wait(receiving.checkpoint, lambda each: each["oplogPosition"] == Timestamp(1, 2))
    restart_daemon(receiving)
    with held(donor, "_migrateClone"):
        reply = receiving.start()
        assert reply["resumeFrom"] == {"key": {"a": 99}, "position": Timestamp(1, 2)}
        donor.from_key = 99
    receiving.wait_state("steady")
    expected = [each for each in documents(100) if each["_id"] != 5]
    assert receiving.stored() == [*expected, {"_id": 200, "a": 7.5}]


def test_a_network_that_fails_for_a_while(receiving: Receiving) -> None:
    """The connection breaks; the same batch is requested again."""
    donor = receiving.donor
    donor.documents, donor.batch_documents = documents(5_000), 500
    donor.broken_connections = {"_migrateClone": 3, "_transferMods": 2}
    receiving.start()
    assert receiving.wait_state("steady", "fail")["state"] == "steady"
    assert receiving.stored() == donor.documents
    numbers = [command["number"] for command in donor.received("_migrateClone")]
    assert len(numbers) > len(set(numbers)) == 11


def test_a_donor_that_no_longer_knows_it(receiving: Receiving) -> None:
    """It was restarted; it will come back with another attempt. Nothing is lost until then."""
    with stopped_halfway(receiving):
        receiving.donor.session_id = "another"
    assert "NotYetInitialized" in receiving.wait_state("fail")["errmsg"]
    assert receiving.checkpoint() is not None
    receiving.donor.session_id = None
    reply = receiving.start()
    receiving.donor.from_key = reply["resumeFrom"]["key"]["a"]
    receiving.wait_state("steady")
    assert receiving.stored() == receiving.donor.documents


def test_a_late_request_leaves_nothing_behind(receiving: Receiving) -> None:
    receiving.donor.session_id = "another"
    receiving.start()
    receiving.wait_state("fail")
    assert receiving.range_deletion() is None
    assert receiving.checkpoint() is None
