"""Commands that drivers hardly ever send: the router's replies, compared with a mongod's where it has the command."""

from collections.abc import Iterator
from datetime import datetime
from hashlib import sha256
from typing import Any, Final
from uuid import UUID

import pytest
from bson.binary import Binary
from bson.int64 import Int64
from pymongo.errors import OperationFailure

from tests.local_cluster import Client, RunningCluster
from tests.router.beside_mongod import VOLATILE, Command, run

DB: Final = "rare_commands"

SESSION: Final = {"id": Binary.from_uuid(UUID(int=7))}
NOBODY: Final = Binary(sha256(b"").digest())
"""The digest of the user of sessions without one."""


OF_SESSIONS: Final[list[Any]] = [
    [SESSION],
    [{**SESSION, "uid": NOBODY}],
    5,
    [5],
    [{}],
    [{"id": 5}],
    [{"id": Binary(b"short")}],
    [{"id": Binary(b"short", 4)}],
    [{**SESSION, "uid": 5}],
    [{**SESSION, "unknown": 1}],
]
OF_USERS: Final[list[Any]] = [[], 5, [5], [{}], [{"user": "u"}], [{"user": 5, "db": "d"}], [{"user": "u", "db": "d"}]]
OF_PATTERNS: Final[list[Any]] = [
    [],
    [{}],
    [{"lsid": {**SESSION, "uid": NOBODY}}],
    [{"uid": NOBODY}],
    [{"users": []}],
    5,
    [5],
    [{"unknown": 1}],
    [{"uid": 5}],
    [{"lsid": 5}],
    [{"lsid": {}}],
    [{"lsid": SESSION}],
    [{"lsid": {"id": 5, "uid": NOBODY}}],
]


@pytest.mark.parametrize(
    "command",
    [
        {"atlasVersion": 1},  # mongosh asks at connect; only Atlas knows it
        {"killSessions": []},
        {"logMessage": "seen", "extra": {"a": 1}, "severity": "warning"},
        *[{"logMessage": "x", **each} for each in ({"unknown": 1}, {"severity": 1}, {"extra": 5})],
        {"logMessage": 5},
        {"startRecordingTraffic": 1},
        *[{"startRecordingTraffic": 1, "filename": each} for each in ("x", 5)],
        {"startRecordingTraffic": 1, "filename": "x", "unknown": 1},
        *[{"stopRecordingTraffic": 1, **each} for each in ({}, {"unknown": 1})],
        {"_killOperations": 1},
        *[{"_killOperations": 1, "operationKeys": each} for each in ([], 5, [5], [Binary(b"short", 4)])],
        {"_killOperations": 1, "operationKeys": [SESSION["id"]], "unknown": 1},
        {"compactStructuredEncryptionData": "x"},
        *[{name: each} for name in ("refreshSessions", "endSessions", "killSessions") for each in OF_SESSIONS],
        *[{"killAllSessions": each} for each in OF_USERS],
        *[{"killAllSessionsByPattern": each} for each in OF_PATTERNS],
    ],
    ids=str,
)
def test_as_a_mongod_answers(router: Client, plain: Client, command: Command) -> None:
    assert run(router, command) == run(plain, command)


def test_log_message(router: Client) -> None:
    router.admin.command("logMessage", "a message of this test", extra={"number": 5})
    assert [line for line in router.admin.command("getLog", "global")["log"] if "a message of this test" in line]


def test_compact_structured_encryption_data(router: Client, plain: Client) -> None:
    missing = {"compactStructuredEncryptionData": "x", "compactionTokens": {}}
    assert run(router, missing, f"{DB}_missing") == run(plain, missing, f"{DB}_missing")
    for client in (router, plain):
        client[DB].not_encrypted.insert_one({})
    for name in ("missing", "not_encrypted"):
        command = {**missing, "compactStructuredEncryptionData": name}
        assert run(router, command, DB) == run(plain, command, DB)


@pytest.mark.parametrize("db", ["admin", DB])
def test_echo(router: Client, db: str) -> None:
    echo = run(router, {"echo": 1, "list": [1, {"a": "b"}]}, db)["echo"]
    assert {name: value for name, value in echo.items() if name not in VOLATILE} == {
        "echo": 1,
        "list": [1, {"a": "b"}],
        "$db": db,
    }


@pytest.mark.parametrize("command", ["features", "startSession"])
def test_form_is_that_of_a_mongod(router: Client, plain: Client, command: str) -> None:
    ours, theirs = run(router, {command: 1}), run(plain, {command: 1})
    assert [(name, type(value)) for name, value in ours.items() if name != "oidMachine"] == [
        (name, type(value)) for name, value in theirs.items() if name != "oidMachine"
    ]
    assert ours.keys() == theirs.keys()
    if command == "features":
        assert isinstance(ours["oidMachine"], int)
        assert ours["oidMachine"] > 0
        assert run(router, {command: 1}) == ours
    else:
        assert run(router, {command: 1})["id"] != ours["id"]


def test_refusals_of_mongos(router: Client) -> None:
    assert run(router, {"replSetGetStatus": 1}) == {
        "info": "mongos",
        "ok": 0.0,
        "errmsg": "replSetGetStatus is not supported through mongos",
    }
    refused = run(router, {"setFreeMonitoring": 1, "action": "enable"})
    assert (refused["ok"], refused["code"], refused["codeName"]) == (0.0, 125, "CommandFailed")
    assert "not supported on mongos" in refused["errmsg"]


@pytest.mark.parametrize(
    "command", [{"replSetGetStatus": 1}, {"setFreeMonitoring": 1, "action": "enable"}, {"getShardMap": 1}], ids=str
)
def test_admin_only(router: Client, plain: Client, command: Command) -> None:
    refused = run(router, command, DB)
    assert (refused["code"], refused["codeName"]) == (13, "Unauthorized")
    assert refused == run(plain, command, DB)


def test_get_shard_map(router: Client, cluster: RunningCluster) -> None:
    strings = {"config": f"config/{cluster.address('config.0.configd')}", **cluster.shards}
    assert run(router, {"getShardMap": 1}) == {
        "map": strings,
        "hosts": {string.partition("/")[2]: shard for shard, string in strings.items()},
        "connStrings": {string: shard for shard, string in strings.items()},
        "ok": 1.0,
    }


def test_set_index_commit_quorum(router: Client, plain: Client, cluster: RunningCluster) -> None:
    """No index build is in progress: the shard's refusal comes in the form that commands on several shards have."""
    for client in (router, plain):
        client[DB].quorum.create_index("a")
    for command in (
        {"setIndexCommitQuorum": "quorum", "indexNames": ["a_1"], "commitQuorum": "majority"},
        {"setIndexCommitQuorum": "missing", "indexNames": ["a_1"], "commitQuorum": "majority"},
    ):
        ours = run(router, command, DB)
        raw = ours.pop("raw")
        assert ours == run(plain, command, DB)
        assert raw.keys() < set(cluster.shards.values())
        assert [{name: value for name, value in reply.items() if name not in VOLATILE} for reply in raw.values()] == [
            ours
        ]
    incomplete: Command = {"setIndexCommitQuorum": "quorum"}
    assert run(router, incomplete, DB) == run(plain, incomplete, DB)


@pytest.fixture
def balancer(router: Client) -> Iterator[None]:
    """The balancer's switch, restored afterwards."""
    before = run(router, {"balancerStatus": 1})["mode"]
    yield
    run(router, {"balancerStop" if before == "off" else "balancerStart": 1})


@pytest.mark.usefixtures("balancer")
def test_balancer_start_and_stop(router: Client) -> None:
    for command, mode in (("balancerStart", "full"), ("balancerStop", "off"), ("balancerStart", "full")):
        assert run(router, {command: 1, "maxTimeMS": 60_000}) == {"ok": 1.0}
        status = run(router, {"balancerStatus": 1})
        assert list(status) == ["mode", "inBalancerRound", "numBalancerRounds", "term", "ok"]
        assert status["mode"] == mode
        assert status["inBalancerRound"] is False or mode == "full"
        switch = router.config.settings.find_one({"_id": "balancer"})
        assert switch == {"_id": "balancer", "mode": mode, "stopped": mode == "off"}
        assert run(router, {command: 1}, DB)["code"] == 13


@pytest.mark.parametrize("everything", [{"killAllSessions": []}, {"killAllSessionsByPattern": []}], ids=str)
def test_killing_all_sessions_kills_cursors(router: Client, everything: Command) -> None:
    collection = router[DB].killed
    collection.drop()
    collection.insert_many({"_id": number} for number in range(10))
    opened = router[DB].command({"find": "killed", "batchSize": 2})["cursor"]["id"]
    assert run(router, everything) == {"ok": 1.0}
    assert run(router, {"getMore": Int64(opened), "collection": "killed"}, DB)["code"] == 43


def test_killing_sessions_by_pattern_kills_their_cursors_only(router: Client) -> None:
    collection = router[DB].killed_by_pattern
    collection.drop()
    collection.insert_many({"_id": number} for number in range(10))
    with router.start_session() as killed, router.start_session() as spared:
        cursors = {
            session.session_id["id"]: (
                session,
                router[DB].command({"find": collection.name, "batchSize": 2}, session=session)["cursor"]["id"],
            )
            for session in (killed, spared)
        }
        pattern = {"lsid": {**killed.session_id, "uid": NOBODY}}
        assert run(router, {"killAllSessionsByPattern": [pattern]}) == {"ok": 1.0}
        session, cursor = cursors[spared.session_id["id"]]
        more = {"getMore": Int64(cursor), "collection": collection.name}
        assert len(router[DB].command(more, session=session)["cursor"]["nextBatch"]) == 8
        session, cursor = cursors[killed.session_id["id"]]
        more = {"getMore": Int64(cursor), "collection": collection.name}
        with pytest.raises(OperationFailure, match="not found"):
            router[DB].command(more, session=session)


def test_time_series_collection_that_is_not_sharded(router: Client, plain: Client) -> None:
    when = datetime(2020, 1, 1)
    commands: list[Command] = [
        {"create": "series", "timeseries": {"timeField": "t", "metaField": "m"}},
        {"insert": "series", "documents": [{"_id": n, "t": when, "m": n % 2, "v": n} for n in range(4)]},
        {"find": "series", "filter": {"m": 1}, "sort": {"_id": 1}},
        {"aggregate": "series", "pipeline": [{"$group": {"_id": "$m", "v": {"$sum": "$v"}}}, {"$sort": {"_id": 1}}]}
        | {"cursor": {}},
        {"listCollections": 1, "filter": {"name": "series"}},
        {"listIndexes": "series"},
        {"delete": "series", "deletes": [{"q": {"m": 1}, "limit": 0}]},
        {"find": "series", "sort": {"_id": 1}},
    ]
    for command in commands:
        ours = run(router, command, DB)
        assert ours["ok"] == 1.0
        assert ours == run(plain, command, DB), command
    distinct = {"distinct": "series", "key": "_id"}
    assert sorted(run(router, distinct, DB)["values"]) == sorted(run(plain, distinct, DB)["values"]) == [0, 2]
    count = {"count": "series"}
    assert run(router, count, DB)["n"] == run(plain, count, DB)["n"] == 2
    other = {"create": "series", "timeseries": {"timeField": "other"}}
    assert run(router, other, DB)["code"] == run(plain, other, DB)["code"] == 48
    for client in (router, plain):
        assert run(client, {"drop": "series"}, DB)["ok"] == 1.0


def test_list_local_sessions(router: Client) -> None:
    with router.start_session() as used, router.start_session() as own:
        router[DB].sessions.find_one({"_id": 1}, session=used)
        stages: list[Command] = [{"$listLocalSessions": {}}, {"$sort": {"lastUse": -1}}]
        found = list(router.admin.aggregate(stages, session=own))
        ids = [document["_id"]["id"] for document in found]
        assert {used.session_id["id"], own.session_id["id"]} <= set(ids)
        assert len(ids) == len(set(ids))
        assert all(isinstance(document["lastUse"], datetime) for document in found)
        limited: list[Command] = [
            {"$listLocalSessions": {}},
            {"$limit": 1},
            {"$project": {"_id": 0, "a": {"$literal": 1}}},
        ]
        assert list(router.admin.aggregate(limited)) == [{"a": 1}]


@pytest.mark.parametrize(
    "stages", [[{"$listLocalSessions": {"nonsense": 1}}], [{"$limit": 1}, {"$listLocalSessions": {}}]], ids=str
)
def test_list_local_sessions_refused(router: Client, plain: Client, stages: list[Command]) -> None:
    command = {"aggregate": 1, "pipeline": stages, "cursor": {}}
    refused = run(router, command)
    assert refused["ok"] == 0
    if stages[0].get("$listLocalSessions"):
        assert refused == run(plain, command)


@pytest.mark.parametrize("command", [{"find": 5, "unknown": 1}, {"serverStatus": 1}, {"nonsense": 1}], ids=str)
@pytest.mark.parametrize("value", [True, 1, "x", False, 0, None])
def test_help(router: Client, plain: Client, command: Command, value: object) -> None:
    """The text is the router's own; whether it is returned depends on the value as on a mongod."""
    ours, theirs = (run(client, {**command, "help": value}, DB) for client in (router, plain))
    assert ("help" in ours, ours["ok"]) == ("help" in theirs, theirs["ok"])
    if "help" in ours:
        name = next(iter(command))
        assert ours["help"].startswith(f"help for: {name} ")
        assert theirs["help"].startswith(f"help for: {name} ")
