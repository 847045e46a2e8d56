"""Refusals in transactions: a router compared with a mongod."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import pytest
from bson import Int64
from bson.binary import Binary
from bson.timestamp import Timestamp

from tests.integration.raw_client import RawClient
from tests.local_cluster import Client, RunningCluster
from tests.router.beside_mongod import Command

DB = "transaction_rules"
COMPARED = frozenset({"ok", "code", "codeName", "errmsg", "errorLabels", "n", "writeErrors"})
START = {"startTransaction": True}


@dataclass
class Session:
    """A session on one server, in its first transaction."""

    client: RawClient
    lsid: Command = field(default_factory=lambda: {"id": Binary.from_uuid(uuid4())})

    def run(self, command: Command, db: str = DB, number: int = 1) -> Command:
        """Run a command and return its reply, without what differs between sessions and servers."""
        fields = {"lsid": self.lsid, "txnNumber": Int64(number), "autocommit": False}
        reply = self.client.command({**command, **fields}, db=db)
        compared = {name: value for name, value in reply.items() if name in COMPARED}
        if "errmsg" in compared:
            session = str(self.lsid["id"].as_uuid())
            compared["errmsg"] = compared["errmsg"].replace(session, "SESSION")
        return compared


@pytest.fixture(scope="module")
def raw(cluster: RunningCluster, router: Client, plain: Client) -> Iterator[tuple[RawClient, RawClient]]:
    """Connections to the router and to the mongod, each with the same documents."""
    for client in (router, plain):
        client[DB].c.insert_many([{"_id": n} for n in range(3)])
    clients = RawClient(cluster.address("router.0")), RawClient(cluster.address("config.0.mongod"))
    yield clients
    for each in clients:
        each.socket.close()


@pytest.fixture
def both(raw: tuple[RawClient, RawClient]) -> Iterator[tuple[Session, Session]]:
    """A new session on each, which takes its open transaction with it."""
    sessions = Session(raw[0]), Session(raw[1])
    yield sessions
    for each in sessions:
        each.client.command({"killSessions": [each.lsid]})


REFUSED: tuple[tuple[Command, str], ...] = (
    ({"count": "c"}, DB),
    ({"listCollections": 1}, DB),
    ({"listIndexes": "c"}, DB),
    ({"listDatabases": 1}, "admin"),
    ({"drop": "c"}, DB),
    ({"dropDatabase": 1}, DB),
    ({"dropIndexes": "c", "index": "x_1"}, DB),
    ({"renameCollection": f"{DB}.c", "to": f"{DB}.d"}, "admin"),
    ({"collMod": "c"}, DB),
    ({"serverStatus": 1}, DB),
    ({"getParameter": "*"}, "admin"),
    ({"dbStats": 1}, DB),
    ({"collStats": "c"}, DB),
    ({"validate": "c"}, DB),
    ({"currentOp": 1}, "admin"),
    ({"endSessions": []}, DB),
    ({"startSession": 1}, DB),
    ({"filemd5": 1, "root": "fs"}, DB),
    ({"mapReduce": "c", "map": "x", "reduce": "y", "out": {"inline": 1}}, DB),
    ({"explain": {"find": "c"}}, DB),
    ({"ping": 1}, DB),
    ({"hello": 1}, DB),
    ({"buildInfo": 1}, DB),
    ({"connectionStatus": 1}, DB),
    ({"find": "c"}, "config"),
    ({"find": "c"}, "local"),
    ({"insert": "c", "documents": [{}]}, "config"),
    ({"count": "c"}, "config"),
    ({"commitTransaction": 1}, "admin"),
    ({"abortTransaction": 1}, "admin"),
    ({"commitTransaction": 1}, DB),
    ({"killCursors": "c", "cursors": [Int64(1)]}, DB),
    ({"insert": "c", "documents": [{}], "writeConcern": {"w": 1}}, DB),
    ({"find": "c", "writeConcern": {"w": 1}}, DB),
    ({"find": "c", "readConcern": {"level": "available"}}, DB),
    ({"find": "c", "readConcern": {"level": "linearizable"}}, DB),
    ({"find": "c", "readConcern": {"level": "unknown"}}, DB),
    ({"create": "d", "readConcern": {"level": "snapshot"}}, DB),
)
"""First statements that are refused before anything is executed."""


@pytest.mark.parametrize(("command", "db"), REFUSED, ids=lambda each: str(each)[:40])
def test_refused_before_execution(both: tuple[Session, Session], command: Command, db: str) -> None:
    ours, theirs = (session.run({**command, **START}, db) for session in both)
    assert ours == theirs
    ours, theirs = (session.run({"find": "c"}) for session in both)
    assert ours["code"] == theirs["code"] == 251  # the transaction has not begun


@pytest.mark.parametrize(
    "command",
    [
        {"count": "c"},
        {"find": "c", "readConcern": {"level": "local"}},
        {"find": "c", "readConcern": {}},
        {"insert": "c", "documents": [{}], "readConcern": {"level": "local"}},
        {"insert": "c", "documents": [{}], "writeConcern": {"w": 0}},
        {"ping": 1},
    ],
    ids=str,
)
def test_refused_statement_leaves_the_transaction_open(both: tuple[Session, Session], command: Command) -> None:
    for session in both:
        assert session.run({"find": "c", **START})["ok"] == 1
    ours, theirs = (session.run(command) for session in both)
    assert ours == theirs
    assert [session.run({"find": "c"})["ok"] for session in both] == [1, 1]
    assert [session.run({"commitTransaction": 1}, "admin")["ok"] for session in both] == [1, 1]


@pytest.mark.parametrize(
    "command",
    [
        {"find": "c", "filter": {"a": {"$unknown": 1}}},
        {"find": "c", "unknownField": 1},
        {"find": "c", "limit": "one"},
        {"find": "c", "tailable": True},
        {"insert": "c", "documents": [{"_id": 1}]},
        {"insert": "system.foo", "documents": [{"_id": 1}]},
        {"getMore": Int64(1), "collection": "c"},
        {"aggregate": "c", "pipeline": [{"$out": "d"}], "cursor": {}},
        {"aggregate": "c", "pipeline": [{"$merge": "d"}], "cursor": {}},
        {"aggregate": "c", "pipeline": [{"$collStats": {}}], "cursor": {}},
        {"aggregate": "c", "pipeline": [{"$indexStats": {}}], "cursor": {}},
        {"aggregate": "c", "pipeline": [{"$changeStream": {}}], "cursor": {}},
        {"aggregate": "c", "pipeline": [{"$planCacheStats": {}}], "cursor": {}},
        {"aggregate": "c", "pipeline": [], "explain": True},
        {"create": "c"},
        {"create": "v", "viewOn": "c", "pipeline": []},
        {"createIndexes": "c", "indexes": [{"key": {"x": 1}, "name": "x_1"}]},
    ],
    ids=lambda each: str(each)[:60],
)
@pytest.mark.parametrize("is_first", [True, False])
def test_failed_statement_aborts(both: tuple[Session, Session], command: Command, is_first: bool) -> None:
    for session in both:
        assert is_first or session.run({"find": "c", **START})["ok"] == 1
    ours, theirs = (session.run({**command, **(START if is_first else {})}) for session in both)
    for reply in (ours, theirs):
        if command.get("writeErrors"):
            reply["writeErrors"][0].pop("errmsg")
    assert _without_text_of_plans(ours) == _without_text_of_plans(theirs)
    ours, theirs = (session.run({"find": "c"}) for session in both)
    assert ours == theirs
    assert ours["code"] == 251


def _without_text_of_plans(reply: Command) -> Command:
    """Routers name the shard in some texts."""
    return {name: value for name, value in reply.items() if name != "raw"}


COURSES: dict[str, tuple[tuple[Command, str, int], ...]] = {
    "unknown": (({"find": "c"}, DB, 3), ({"commitTransaction": 1}, "admin", 3), ({"abortTransaction": 1}, "admin", 3)),
    "older": (
        ({"find": "c", **START}, DB, 5),
        ({"find": "c", **START}, DB, 4),
        ({"find": "c"}, DB, 4),
        ({"commitTransaction": 1}, "admin", 4),
        ({"abortTransaction": 1}, "admin", 4),
        ({"find": "c"}, DB, 6),
        ({"find": "c"}, DB, 5),
    ),
    "committed": (
        ({"find": "c", **START}, DB, 1),
        ({"commitTransaction": 1}, "admin", 1),
        ({"commitTransaction": 1}, "admin", 1),
        ({"find": "c"}, DB, 1),
        ({"abortTransaction": 1}, "admin", 1),
        ({"commitTransaction": 1, "recoveryToken": {}}, "admin", 1),
        ({"commitTransaction": 1, "recoveryToken": {"a": 1}}, "admin", 1),
        ({"commitTransaction": 1, "recoveryToken": 1}, "admin", 1),
        ({"commitTransaction": 1, "recoveryToken": {"recoveryShardId": 1}}, "admin", 1),
        ({"commitTransaction": 1, "unknown": 1}, "admin", 1),
        ({"commitTransaction": 1, "readConcern": {"level": "local"}}, "admin", 1),
    ),
    "aborted": (
        ({"find": "c", **START}, DB, 1),
        ({"abortTransaction": 1}, "admin", 1),
        ({"abortTransaction": 1}, "admin", 1),
        ({"commitTransaction": 1}, "admin", 1),
        ({"find": "c"}, DB, 1),
    ),
}
AS_MONGOS = {("unknown", 1): 50940}
"""Errors of a router that differ from a mongod's, because another router may have begun the transaction."""


@pytest.mark.parametrize("course", COURSES)
def test_courses(both: tuple[Session, Session], course: str) -> None:
    for step, (command, db, number) in enumerate(COURSES[course]):
        ours, theirs = (session.run(command, db, number) for session in both)
        if (course, step) in AS_MONGOS:
            assert ours["code"] == AS_MONGOS[course, step]
        else:
            assert ours == theirs, command


def test_restart_is_refused(both: tuple[Session, Session]) -> None:
    for session in both:
        session.run({"find": "c", **START})
        assert session.run({"find": "c", **START})["code"] == 117


@pytest.mark.parametrize(
    "concern",
    [
        {"level": "local", "atClusterTime": Timestamp(1, 1)},
        {"level": "snapshot", "atClusterTime": Timestamp(1, 1), "afterClusterTime": Timestamp(1, 1)},
        {"level": "snapshot", "atClusterTime": Timestamp(1, 1)},
        {"unknown": 1},
    ],
    ids=str,
)
def test_times_are_checked_by_the_shard(both: tuple[Session, Session], concern: Command) -> None:
    ours, theirs = (session.run({"find": "c", "readConcern": concern, **START}) for session in both)
    assert ours == theirs


@pytest.mark.parametrize("name", ["commitTransaction", "abortTransaction"])
def test_end_outside_of_a_transaction(raw: tuple[RawClient, RawClient], name: str) -> None:
    lsid = {"id": Binary.from_uuid(uuid4())}
    for fields in ({}, {"lsid": lsid}, {"lsid": lsid, "txnNumber": Int64(1)}):
        ours, theirs = (_compared(client.command({name: 1, **fields})) for client in raw)
        assert ours == theirs


def _compared(reply: dict[str, Any]) -> Command:
    return {name: value for name, value in reply.items() if name in COMPARED}
