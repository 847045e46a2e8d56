"""``logRotate`` through a daemon rotates its log and its mongod's."""

from pathlib import Path

import pytest
from pymongo.errors import OperationFailure

from tests.shardd.mini_cluster import Member, replica_set

ROTATED = "*.20??-??-??T??-??-??"
"""The name of a rotated log, the same for mongod and the daemon."""


@pytest.mark.parametrize("kind", ["shardd", "configd"])
def test_both_logs_are_rotated(tmp_path: Path, kind: str) -> None:
    with replica_set(tmp_path, daemon=kind) as alone:
        (member,) = alone.members
        logs = tmp_path / "logs"
        logs.mkdir()
        member.daemon.arguments += ["--log-file", str(logs / "daemon.log")]
        member.restart(member.daemon)
        check_refusal(member, logs)
        with member.client() as client:
            reply = client.admin.command("logRotate")
        assert reply["ok"] == 1
        (finished,) = logs.glob(ROTATED)
        assert "Listening" in finished.read_text()
        assert "Log file opened" in (logs / "daemon.log").read_text()
        assert len(list(tmp_path.glob(ROTATED))) == 1


def check_refusal(member: Member, logs: Path) -> None:
    """Check that the daemon does not do what the mongod refuses."""
    with member.client() as client, pytest.raises(OperationFailure) as caught:
        client.admin.command("logRotate", "audit")
    assert caught.value.code == 4
    assert not list(logs.glob(ROTATED))
