"""The recipient's critical section: which operations it blocks, and that it lasts until the donor releases it."""

import signal
import threading
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from bson import ObjectId, Timestamp
from pymongo.errors import ExecutionTimeout, PyMongoError

from shardwright.shardd.metadata.namespace_state import NamespaceState
from shardwright.shardd.migration.recipient.recipient_state import RecipientCriticalSection
from shardwright.wire.errors import BackendError
from tests.fail_points import fail_point
from tests.shardd.migration.recipient.receiving import Receiving, documents

UNSHARDED = {"t": Timestamp(0, 0), "e": ObjectId("0" * 24), "v": Timestamp(0, 0)}
READ: dict[str, Any] = {"find": "c"}
WRITE: dict[str, Any] = {"insert": "c", "documents": [{"a": -1}]}
BEFORE_COMPLETE = "migrateThreadHangAtStep6"
"""At this fail point the critical section has begun, but is not complete yet."""


@pytest.fixture
def entered(receiving: Receiving) -> Receiving:
    """A migration whose recipient waits for the decision."""
    receiving.donor.documents = documents(10)
    receiving.start()
    receiving.wait_state("steady")
    assert receiving.commit()["state"] == "enteredCriticalSection"
    return receiving


def versioned(receiving: Receiving, command: dict[str, Any], **limit: int) -> dict[str, Any]:
    return dict(receiving.client[receiving.db].command({**command, "shardVersion": UNSHARDED, **limit}))


def assert_waits(receiving: Receiving, command: dict[str, Any]) -> None:
    with pytest.raises(ExecutionTimeout):
        versioned(receiving, command, maxTimeMS=300)


@pytest.mark.parametrize("command", [READ, WRITE])
def test_operations_wait(entered: Receiving, command: dict[str, Any]) -> None:
    assert_waits(entered, command)
    entered.release()
    assert versioned(entered, command)["ok"]


def test_the_commit_may_be_repeated(entered: Receiving) -> None:
    assert entered.commit()["state"] == "enteredCriticalSection"


def test_an_abort_does_not_end_it(entered: Receiving) -> None:
    assert entered.abort()["state"] == "enteredCriticalSection"
    assert_waits(entered, READ)


def test_the_release_may_be_repeated(entered: Receiving) -> None:
    assert entered.release() == entered.release() == {"ok": 1.0}


def test_the_release_needs_majority_write_concern(entered: Receiving) -> None:
    release = {"_recvChunkReleaseCritSec": entered.namespace, "sessionId": entered.session_id}
    refused = entered.run(release)
    assert (refused["code"], refused["errmsg"]) == (
        72,
        '"_recvChunkReleaseCritSec" must be called with majority writeConcern, got: '
        '{ w: 1, wtimeout: 0, provenance: "implicitDefault" } ',
    )
    assert entered.status()["active"]


def test_the_decision_ends_it_too(entered: Receiving) -> None:
    assert entered.finish("aborted") == {"ok": 1.0}
    assert versioned(entered, READ)["ok"]


@pytest.mark.parametrize("process", ["daemon", "mongod"])
def test_it_survives_a_restart(entered: Receiving, process: str) -> None:
    member = entered.member
    member.restart(member.daemon if process == "daemon" else member.mongod)
    status = entered.wait(entered.status, lambda status: status.get("active"))
    assert status["state"] == "enteredCriticalSection"
    assert (status["sessionId"], status["ns"], status["fromShardId"]) == (
        entered.session_id,
        entered.namespace,
        "donor",
    )
    assert (status["min"], status["max"]) == (entered.range["min"], entered.range["max"])
    assert_waits(entered, READ)
    assert entered.commit()["ok"]
    assert entered.start()["codeName"] == "ConflictingOperationInProgress"
    entered.session_id = status["sessionId"]
    assert entered.release() == {"ok": 1.0}
    assert versioned(entered, READ)["ok"]
    assert entered.config("migrationRecipients") == entered.config("collection_critical_sections") == []
    assert entered.finish("committed") == {"ok": 1.0}


def test_an_incomplete_one_does_not_count_as_prepared(receiving: Receiving) -> None:
    """The daemon is killed before its critical section is complete: afterwards it must not claim to have everything."""
    receiving.start()
    receiving.wait_state("steady")
    with fail_point(receiving.client, BEFORE_COMPLETE):
        committing = threading.Thread(target=lambda: _ignore_errors(receiving.commit))
        committing.start()
        receiving.wait(lambda: receiving.config("collection_critical_sections"), bool)
        receiving.member.daemon.stop(signal.SIGKILL)
        committing.join()
        receiving.member.daemon.start()
        receiving.member.wait_ready()
    status = receiving.wait(receiving.status, lambda status: status.get("active"))
    assert status["state"] == "fail"
    assert receiving.commit()["code"] == 125
    assert_waits(receiving, READ)
    assert receiving.release() == {"ok": 1.0}
    assert versioned(receiving, READ)["ok"]


def test_a_commit_that_takes_too_long_is_undone(receiving: Receiving) -> None:
    receiving.start()
    receiving.wait_state("steady")
    with fail_point(receiving.client, BEFORE_COMPLETE):
        committing = threading.Thread(target=receiving.commit)
        committing.start()
        receiving.wait(lambda: receiving.config("collection_critical_sections"), bool)
        assert receiving.abort()["state"] == "abort"
        committing.join()
    assert receiving.config("migrationRecipients") == receiving.config("collection_critical_sections") == []
    assert versioned(receiving, READ)["ok"]


async def test_its_restoration_can_be_repeated_after_an_error() -> None:
    """A primary repeats the beginning of its term until mongod answers."""
    state = NamespaceState("d.c", "me")

    async def command(*_: object) -> dict[str, Any]:
        if not failures:
            failures.append(BackendError("mongod", "no answer", sent=True))
            raise failures[0]
        return {"cursor": {"firstBatch": [{"_id": "d.c", "reason": reason, "blockReads": True}]}}

    failures: list[BackendError] = []
    reason = {"recvChunk": 1, "sessionId": "donor_recipient_1"}
    context: Any = SimpleNamespace(mongod=SimpleNamespace(command=command), namespace=lambda _: state)
    recipient: Any = SimpleNamespace(namespace="d.c", session_id=reason["sessionId"])
    with pytest.raises(BackendError):
        await RecipientCriticalSection(context, recipient).restore()
    with trio.fail_after(10):
        assert await RecipientCriticalSection(context, recipient).restore()
    assert state.critical_section is not None
    assert state.critical_section.blocks_reads


def _ignore_errors(function: Any) -> None:  # noqa: ANN401 - any function
    try:
        function()
    except PyMongoError:
        return
