"""A donor's log lines about a migration."""

import logging
from typing import Any

import bson
import pytest
import trio

from shardwright.shardd.migration.donor.donor_state import DonorStep, RecipientStatus
from shardwright.shardd.migration.donor.migration import PROGRESS_SECONDS
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from tests.shardd.migration.donor.lone_donor import ESTIMATE, LoneDonor, Recipient
from tests.shardd.migration.donor.moving import LOW, TOP, Move, log_lines
from tests.shardd.mini_cluster import MiniCluster
from tests.shardd.router_stand_in import ShardedNamespace

STEP_DONE = "Finished a migration step"
UNDER_WAY = "Migration in progress"


class ThoroughRecipient(Recipient):
    """It clones for a while, replying once a second, and finally fails."""

    CLONE_SECONDS = 35

    async def status(self, session_id: str) -> RecipientStatus:
        await trio.sleep(1)
        seconds = round(trio.current_time() - self.began)
        if seconds < self.CLONE_SECONDS:
            return self.in_state("clone", 10 * seconds)
        return self.in_state("steady", ESTIMATE)

    async def start(self, attempts: object) -> dict[str, Any]:
        self.began = trio.current_time()
        return {"started": True}

    async def commit(self, session_id: str) -> RecipientStatus:
        raise CommandError(ErrorCode.CommandFailed, "no")


def logged(caplog: pytest.LogCaptureFixture, sentence: str) -> list[dict[str, Any]]:
    """The fields of all log lines with one message."""
    return [vars(record)["fields"] for record in caplog.records if record.getMessage() == sentence]


def test_a_long_clone_is_logged_at_intervals(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    donor = LoneDonor(ThoroughRecipient())
    donor.run()
    lines = logged(caplog, UNDER_WAY)
    assert [line["documents_cloned"] for line in lines] == [10 * PROGRESS_SECONDS * n for n in (1, 2, 3)]
    attempts = donor.mongod.written["migrationAttempts"]
    session = attempts["attempts"][0]["sessionId"]
    assert lines[0] == {
        "namespace": "db.c",
        "migration": str(attempts["_id"].as_uuid()),
        "session": session,
        "recipient": "sh1",
        "range": "[{ a: 0 }, { a: 10 })",
        "attempt": 1,
        "documents_cloned": 100,
        "documents_estimated": ESTIMATE,
        "bytes_cloned": 10_000,
        "documents_queued": 3,
        "bytes_queued": 300,
        "recipient_state": "clone",
    }
    started, caught_up = logged(caplog, STEP_DONE)
    nothing = {"documents_cloned": 0, "bytes_cloned": 0, "recipient_state": ""}
    assert started == {**lines[0], **nothing, "step": "recipient_started", "duration_ms": started["duration_ms"]}
    assert (caught_up["step"], caught_up["recipient_state"]) == ("caught_up", "steady")
    assert caught_up["documents_cloned"] == ESTIMATE


def test_each_finished_step_is_logged(mini: MiniCluster, ranged: ShardedNamespace) -> None:
    ranged.insert(*({"_id": n, "a": n} for n in range(10, 110)))
    Move(ranged, LOW, TOP, "sh1").wait()
    lines = log_lines(mini, "sh0", STEP_DONE, ranged.namespace)[-6:]
    assert [line["step"] for line in lines] == [step.name.lower() for step in DonorStep]
    assert all(line["level"] == "info" and line["duration_ms"] >= 0 and line["recipient"] == "sh1" for line in lines)
    assert all(line["range"] == "[{ a: 10 }, { a: MaxKey })" for line in lines[1:])
    assert len({line["session"] for line in lines[1:]}) == 1
    for line in lines[3:]:
        assert (line["attempt"], line["documents_cloned"], line["documents_estimated"]) == (1, 100, 100)
        assert line["bytes_cloned"] == 100 * len(bson.encode({"_id": 10, "a": 10}))
        assert (line["documents_queued"], line["bytes_queued"]) == (0, 0)
    assert [line["recipient_state"] for line in lines[2:]] == ["", "steady", *["enteredCriticalSection"] * 2]
    assert log_lines(mini, "sh0", UNDER_WAY, ranged.namespace) == []
