"""A donor's replies to a server that is not the recipient of its migration, and to the recipient after the clone."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final

import pytest

from tests.fail_points import fail_point
from tests.interop.comparison import assert_same
from tests.interop.deployment import HIGH, LOW, Deployment, Document

Both = tuple[Deployment, Deployment]

NAMESPACE: Final = "interop_source.c"
OTHER_SESSION: Final = "here_there_6b017a9f5b4337f6ba96b129"
HANG: Final = "moveChunkHangAtStep3"

SESSIONS: Final[dict[str, Document]] = {
    "of another session": {"sessionId": OTHER_SESSION},
    "of no session": {},
    "of a number": {"sessionId": 5},
    "of a name": {"sessionId": "x"},
}
CALLS: Final[dict[str, Document]] = {
    f"{name} {kind}": {name: NAMESPACE, **session}
    for name in ("_migrateClone", "_transferMods", "_getNextSessionMods")
    for kind, session in SESSIONS.items()
}


@pytest.mark.parametrize("name", CALLS)
def test_no_active_migration(both: Both, name: str) -> None:
    assert assert_same(both, lambda deployment: deployment.on_shard(0, CALLS[name]))["ok"] == 0


@pytest.mark.parametrize("name", ["_migrateClone", "_transferMods"])
def test_another_database(both: Both, name: str) -> None:
    assert_same(both, lambda deployment: deployment.on_shard(0, {name: NAMESPACE, "sessionId": "x"}, db="test"))


@contextmanager
def migrating(deployment: Deployment) -> Iterator[str]:
    """A migration that waits before its critical section, with everything cloned; yields its session id."""
    deployment.shard_collection(NAMESPACE, {"key": 1})
    deployment.shards[0].interop_source.c.insert_many([{"key": number} for number in range(10)])
    with ThreadPoolExecutor() as executor:
        with fail_point(deployment.shards[0], HANG) as hang:
            move: Future[Document] = executor.submit(deployment.move, NAMESPACE, 1, min={"key": LOW}, max={"key": HIGH})
            hang.wait_entered()
            status = {"_recvChunkStatus": NAMESPACE}
            session_id: str = deployment.on_shard(1, status)["sessionId"]
            waiting = {**status, "waitForSteadyOrDone": True, "sessionId": session_id}
            # There is a reply after at most a second, steady or not.
            answers = (deployment.on_shard(1, waiting)["state"] for _ in range(30))
            assert "steady" in answers
            yield session_id
        assert move.result() == {"ok": 1.0}


def test_an_active_migration(both: Both) -> None:
    def ask(deployment: Deployment) -> list[Any]:
        with migrating(deployment) as session_id:
            replies: list[Any] = [deployment.on_shard(0, call) for call in CALLS.values()]
            for name in ("_migrateClone", "_transferMods"):
                reply = deployment.on_shard(0, {name: "any.name", "sessionId": session_id})
                reply.pop("position", None)  # our own
                replies.append(reply)
        return [_without(session_id, reply) for reply in replies]

    assert assert_same(both, ask)[-1]["ok"] == 1


def _without(session_id: str, reply: Document) -> Document:
    """The same reply whatever the id of the session is."""
    return {
        name: value.replace(session_id, "<session>") if isinstance(value, str) else value
        for name, value in reply.items()
    }
