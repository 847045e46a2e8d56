"""Limited cursors on a shard daemon that receives a range: their results, and the release of the kept documents."""

import threading
import time
from collections.abc import Iterator
from typing import Any, Final

import pytest
from bson.int64 import Int64
from pymongo.client_session import ClientSession
from pymongo.database import Database
from pymongo.errors import OperationFailure

from tests.integration.waiting import eventually
from tests.shardd.mini_cluster import MiniCluster
from tests.shardd.router_stand_in import ShardedNamespace

OWNED: Final = [*range(-50, 0), *range(10, 60)]
ARRIVING: Final = list(range(10))
CURSOR_NOT_FOUND: Final = 43
UNAUTHORIZED: Final = 13
IN_OTHER_SESSION: Final = 50738

Cursor = dict[str, Any]


@pytest.fixture
def db(mini: MiniCluster, ranged: ShardedNamespace) -> Iterator[Database[dict[str, Any]]]:
    """The database of a collection with documents on both shards, on the daemon of ``sh0``."""
    with mini.shards["sh0"].members[0].client() as client:
        ranged.insert(*({"_id": number, "a": number, "n": number} for number in OWNED))
        ranged.insert(*({"_id": number, "a": number, "n": number} for number in ARRIVING), shard="sh1")
        yield client[ranged.db]


def opened(db: Database[dict[str, Any]], ranged: ShardedNamespace, session: ClientSession, **options: Any) -> Cursor:  # noqa: ANN401
    command = {"find": "c", "shardVersion": ranged.version(), **options}
    cursor: Cursor = db.command(command, session=session)["cursor"]
    return cursor


def rest_of(db: Database[dict[str, Any]], session: ClientSession, cursor: Cursor) -> list[int]:
    found: list[int] = []
    while cursor["id"]:
        cursor = db.command({"getMore": Int64(cursor["id"]), "collection": "c", "batchSize": 7}, session=session)[
            "cursor"
        ]
        found += [document["n"] for document in cursor["nextBatch"]]
    return found


def kept(db: Database[dict[str, Any]], ranged: ShardedNamespace, session: ClientSession) -> tuple[Cursor, list[int]]:
    """A cursor whose remaining documents the daemon keeps, and the documents that it has returned before."""
    cursor = opened(db, ranged, session, limit=90, batchSize=0)
    begun = db.command({"getMore": Int64(cursor["id"]), "collection": "c", "batchSize": 7}, session=session)["cursor"]
    ranged.move({"a": 0}, {"a": 10}, "sh0")
    return cursor, [document["n"] for document in begun["nextBatch"]]


def test_what_is_left_of_a_cursor_without_a_filter_is_kept(
    db: Database[dict[str, Any]], ranged: ShardedNamespace
) -> None:
    with db.client.start_session() as session:
        cursor, found = kept(db, ranged, session)
        found += rest_of(db, session, cursor)
    assert len(found) == 90
    assert set(found) < set(OWNED)


@pytest.mark.parametrize("command", ["killCursors", "endSessions", "killSessions", "killAllSessions"])
def test_what_is_kept_is_freed(db: Database[dict[str, Any]], ranged: ShardedNamespace, command: str) -> None:
    session = db.client.start_session()
    cursor, _ = kept(db, ranged, session)
    if command == "killCursors":
        reply = db.command({command: "c", "cursors": [Int64(cursor["id"])]}, session=session)
        assert (reply["cursorsKilled"], reply["cursorsNotFound"]) == ([cursor["id"]], [])
    else:
        named = [] if command == "killAllSessions" else [session.session_id]
        db.client.admin.command({command: named})
    with pytest.raises(OperationFailure) as caught:
        rest_of(db, session, cursor)
    assert caught.value.code == CURSOR_NOT_FOUND


@pytest.mark.parametrize("batch_size", [3, 0], ids=["kept", "opened again"])
def test_other_readers_are_refused_as_by_a_mongod(
    db: Database[dict[str, Any]], ranged: ShardedNamespace, batch_size: int
) -> None:
    with db.client.start_session() as session, db.client.start_session() as other:
        if batch_size:
            cursor, _ = kept(db, ranged, session)
        else:
            cursor = opened(db, ranged, session, limit=90, batchSize=0)
            ranged.move({"a": 0}, {"a": 10}, "sh0")
        more = {"getMore": Int64(cursor["id"]), "collection": "c"}
        with pytest.raises(OperationFailure, match="but cursor belongs to a different namespace") as caught:
            db.command({**more, "collection": "other"}, session=session)
        assert caught.value.code == UNAUTHORIZED
        with pytest.raises(OperationFailure, match=r"which was created in session .*, in session") as caught:
            db.command(more, session=other)
        assert caught.value.code == IN_OTHER_SESSION
        assert rest_of(db, session, cursor)


@pytest.mark.matrix(share=0.3)
@pytest.mark.parametrize(
    "options",
    [{"batchSize": 3}, {"limit": 101}, {"limit": 101, "projection": {"_id": 0, "n": 1, "text": 1}}],
    ids=str,
)
def test_a_limited_cursor_of_large_documents_returns_all(
    db: Database[dict[str, Any]], ranged: ShardedNamespace, options: dict[str, Any]
) -> None:
    """More is left of it than could be kept."""
    for number in OWNED[:55]:
        updated = {"q": {"a": number}, "u": {"$set": {"text": "x" * 2_000_000}}}
        assert ranged.versioned({"update": "c", "updates": [updated]})["ok"]
    with db.client.start_session() as session:
        cursor = opened(db, ranged, session, **{"limit": 1000, **options})
        ranged.move({"a": 0}, {"a": 10}, "sh0")
        found = [document["n"] for document in cursor["firstBatch"]] + rest_of(db, session, cursor)
    assert sorted(found) == OWNED


def test_no_move_waits_for_a_slow_limited_cursor(db: Database[dict[str, Any]], ranged: ShardedNamespace) -> None:
    """Nor does its reader miss anything: it has a filter."""
    slow = {"$where": "sleep(300) || true"}
    found: list[int] = []
    with db.client.start_session() as session:
        cursor = opened(db, ranged, session, filter=slow, limit=60, batchSize=1)

        def read() -> None:
            more = {"getMore": Int64(cursor["id"]), "collection": "c", "batchSize": 50}
            found.extend(document["n"] for document in db.command(more, session=session)["cursor"]["nextBatch"])

        thread = threading.Thread(target=read)
        thread.start()
        eventually(lambda: "sleep(300)" in str(db.client.admin.command("currentOp", True)["inprog"]))
        began = time.monotonic()
        ranged.move({"a": 0}, {"a": 10}, "sh0")
        took = time.monotonic() - began
        assert thread.is_alive()
        thread.join()
    assert len(found) == 50
    assert took < 10
