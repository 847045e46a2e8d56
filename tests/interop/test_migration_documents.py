"""The documents and status of a suspended migration are the same on genuine shards and on ours."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final

import pytest
from bson.int64 import Int64
from bson.timestamp import Timestamp

from tests.fail_points import fail_point
from tests.integration.waiting import eventually
from tests.interop.comparison import assert_same
from tests.interop.deployment import HIGH, MAJORITY, Deployment, Document

Both = tuple[Deployment, Deployment]

DB: Final = "interop_migration"
DOCUMENTS: Final = 40
DONOR, RECIPIENT = 0, 1

PERSISTED: Final = (
    "migrationCoordinators",
    "migrationRecipients",
    "rangeDeletions",
    "collection_critical_sections",
)
"""Collections of ``config`` in which a shard persists the state of migrations for its next primary."""


@pytest.fixture(scope="module", autouse=True)
def database(both: Both) -> Iterator[None]:
    """The database of these tests, dropped on both clusters afterwards. Orphans are kept for a while."""
    delay = "orphanCleanupDelaySecs"
    delays = [deployment.on_shard(DONOR, {"getParameter": 1, delay: 1})[delay] for deployment in both]
    for deployment in both:
        assert deployment.on_shard(DONOR, {"setParameter": 1, delay: 900})["ok"]
    yield
    for deployment, before in zip(both, delays, strict=True):
        assert deployment.on_shard(DONOR, {"setParameter": 1, delay: before})["ok"]
        drop = {"_shardsvrDropDatabase": 1, "databaseVersion": deployment.create_database(DB)}
        assert deployment.on_shard(0, {**drop, "writeConcern": MAJORITY}, db=DB)["ok"]


def filled_collection(deployment: Deployment, name: str) -> str:
    """A collection with one chunk on the donor; half of its documents will move."""
    namespace = f"{DB}.{name}"
    assert deployment.shard_collection(namespace, {"key": 1})["ok"]
    deployment.shards[DONOR][DB][name].insert_many([{"_id": n, "key": n} for n in range(DOCUMENTS)])
    return namespace


@contextmanager
def stopped_at(deployment: Deployment, shard: int, place: str, namespace: str) -> Iterator[Future[Document]]:
    """A migration of the upper half that waits at a fail point of a shard until the block ends."""
    upper_half = {"min": {"key": DOCUMENTS // 2}, "max": {"key": HIGH}}
    with ThreadPoolExecutor() as mover:
        with fail_point(deployment.shards[shard], place) as point:
            moving = mover.submit(deployment.move, namespace, RECIPIENT, **upper_half)
            point.wait_entered()
            yield moving
        moving.result(60)


def persisted(deployment: Deployment, namespace: str) -> dict[str, list[Document]]:
    """The persisted documents of both shards about migrations of a collection, by shard and collection."""
    of_it = {"$or": [{"nss": namespace}, {"_id": namespace}]}
    return {
        f"{side} {name}": [comparable(document) for document in deployment.shards[shard].config[name].find(of_it)]
        for side, shard in (("donor", DONOR), ("recipient", RECIPIENT))
        for name in PERSISTED
    }


def comparable(document: Document) -> Document:
    """A document without the fields that may differ: sessions and times."""
    replaced: Document = {}
    if "lsid" in document:
        assert isinstance(document["txnNumber"], Int64)
        replaced = {"lsid": {**document["lsid"], "uid": len(document["lsid"]["uid"])}, "txnNumber": "long"}
    if "timestamp" in document:
        # Genuine shards keep the time at which the document was written. Ours writes the time at which the range became
        # ready for deletion, so that a restart does not begin the delay again.
        assert isinstance(document["timestamp"], Timestamp)
        replaced = {"timestamp": "time"}
    if "blockReads" in document:
        # A genuine recipient blocks reads a moment later than writes, ours at the same time as its donor does.
        assert isinstance(document["blockReads"], bool)
        replaced = {"blockReads": "bool"}
    return {**document, **replaced}


def receive_status(deployment: Deployment, namespace: str, session_id: str = "", *, wait: bool = False) -> Document:
    """The recipient's reply to the donor's request for its progress."""
    return deployment.on_shard(
        RECIPIENT, {"_recvChunkStatus": namespace, "waitForSteadyOrDone": wait, "sessionId": session_id}
    )


def session_id(deployment: Deployment, namespace: str) -> str:
    """The session of the active migration."""
    [coordinator] = deployment.shards[DONOR].config.migrationCoordinators.find({"nss": namespace})
    return str(coordinator["migrationSessionId"])


@pytest.mark.parametrize(
    ("shard", "place"),
    [
        # When exactly a step removes a document does not matter, but at these points the same ones must exist.
        (RECIPIENT, "migrateThreadHangAtStep1"),
        (RECIPIENT, "migrateThreadHangAtStep3"),
        (DONOR, "moveChunkHangAtStep4"),
        (DONOR, "moveChunkHangAtStep5"),
    ],
)
def test_documents_of_a_suspended_migration(both: Both, shard: int, place: str) -> None:
    def ask(deployment: Deployment) -> list[Any]:
        namespace = filled_collection(deployment, place)
        with stopped_at(deployment, shard, place, namespace) as moving:
            during = persisted(deployment, namespace)
        return [during, moving.result(), persisted(deployment, namespace)]

    assert_same(both, ask)


def test_status_of_the_recipient(both: Both) -> None:
    def ask(deployment: Deployment) -> list[Any]:
        namespace = filled_collection(deployment, "status")
        with stopped_at(deployment, RECIPIENT, "migrateThreadHangAtStep3", namespace):
            session = session_id(deployment, namespace)
            cloning = [receive_status(deployment, namespace, session), receive_status(deployment, namespace, "other")]
        namespace = filled_collection(deployment, "status_steady")
        with stopped_at(deployment, DONOR, "moveChunkHangAtStep4", namespace):
            session = session_id(deployment, namespace)
            steady = [receive_status(deployment, namespace, session, wait=wait) for wait in (False, True)]
        namespace = filled_collection(deployment, "status_critical")
        with stopped_at(deployment, DONOR, "moveChunkHangAtStep5", namespace):
            session = session_id(deployment, namespace)
            critical = receive_status(deployment, namespace, session)
        after = receive_status(deployment, namespace, session)
        return [cloning, steady, critical, after]

    assert_same(both, ask)


def changes_of_a_move(deployment: Deployment, namespace: str) -> list[Document]:
    """The changelog's entries for a successful move; empty until both sides have recorded their durations."""
    changes = [change for change in deployment.changes(namespace) if change["what"].startswith("moveChunk")]
    return changes if {"moveChunk.from", "moveChunk.to"} <= {change["what"] for change in changes} else []


def test_changes_in_the_changelog(both: Both) -> None:
    def ask(deployment: Deployment) -> list[Any]:
        namespace = filled_collection(deployment, "logged")
        moved = deployment.move(namespace, RECIPIENT, min={"key": DOCUMENTS // 2}, max={"key": HIGH})
        changes = eventually(lambda: changes_of_a_move(deployment, namespace), what="both sides have recorded the move")
        for change in changes:
            change["clientAddr"], change["_id"] = "somewhere", change["_id"].rpartition("-")[2]
            # How long the steps took.
            change["details"] = {
                name: "ms" if name.startswith("step") else value for name, value in change["details"].items()
            }
        return [moved, sorted(changes, key=lambda change: str(change["what"]))]

    assert_same(both, ask)
