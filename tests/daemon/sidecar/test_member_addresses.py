"""The addresses of daemons in place of their mongods' addresses."""

from typing import Any

import pytest
from bson import Binary, ObjectId, decode, encode

from shardwright.daemon.sidecar.member_addresses import (
    ShownMembers,
    election_term,
    names_members,
    rewrite_hello,
    topology_of,
    unmapped_members,
    with_daemons,
    with_mongods,
    with_own_host,
)
from shardwright.wire.message import OpMsg, op_msg
from shardwright.wire.request import Request

SIDECARS = {"m0:1": "d0:1", "m1:1": "d1:1"}
HELLO = {
    "topologyVersion": {"processId": ObjectId(), "counter": 6},
    "hosts": ["m0:1", "m1:1", "m2:1"],
    "arbiters": ["m3:1"],
    "setName": "s",
    "isWritablePrimary": True,
    "primary": "m0:1",
    "me": "m0:1",
    "localTime": 7,
    "ok": 1.0,
}


def test_addresses_are_replaced_by_those_of_daemons() -> None:
    seen = rewrite_hello(HELLO, SIDECARS)
    assert seen["hosts"] == ["d0:1", "d1:1"]
    assert (seen["primary"], seen["me"]) == ("d0:1", "d0:1")
    assert seen["setName"] == "s"


def test_a_member_without_a_daemon_is_omitted_everywhere() -> None:
    seen = rewrite_hello({**HELLO, "primary": "m2:1"}, SIDECARS)
    assert "primary" not in seen
    assert "arbiters" not in seen
    assert unmapped_members(HELLO, SIDECARS) == {"m2:1", "m3:1"}


def test_topology_is_what_clients_wait_for() -> None:
    assert topology_of(HELLO) == topology_of({**HELLO, "localTime": 8, "lastWrite": {}, "connectionId": 3})
    assert topology_of(HELLO) != topology_of({**HELLO, "primary": "m1:1"})


def test_the_term_is_in_the_election_id() -> None:
    assert election_term({"electionId": ObjectId("7fffffff000000000000002a")}) == 42


SHOWN = ShownMembers("[::1]:27018", {"m0:1": "[::1]:27018", "m1:1": "d1:1"}, "shardsvr")


def request(command: dict[str, Any]) -> Request:
    return Request(OpMsg(op_msg(encode({**command, "$db": "admin"}), request_id=1)))


def seen(command: dict[str, Any], reply: dict[str, Any]) -> dict[str, Any]:
    assert names_members(request(command))
    return decode(with_daemons(request(command), encode(reply), SHOWN))


def test_the_status_of_a_set_names_daemons_at_any_depth() -> None:
    status = {
        "syncSourceHost": "m1:1",
        "members": [{"name": "m0:1", "syncSourceHost": ""}, {"name": "m2:1", "tags": {"note": "m1:1"}}],
        "initialSyncStatus": {"initialSyncAttempts": [{"syncSource": "m1:1"}]},
    }
    assert seen({"replSetGetStatus": 1}, status) == {
        "syncSourceHost": "d1:1",
        "members": [{"name": "[::1]:27018", "syncSourceHost": ""}, {"name": "m2:1", "tags": {"note": "m1:1"}}],
        "initialSyncStatus": {"initialSyncAttempts": [{"syncSource": "d1:1"}]},
    }


def test_only_fields_with_addresses_are_translated() -> None:
    """Tags and write concern modes have the names that users give them, and may have any text."""
    tags = {name: "m0:1" for name in ("host", "name", "prevSyncTarget", "syncFromRequested", "syncSource")}
    settings = {"getLastErrorModes": {"host": {"name": 1}}}
    config = {"members": [{"host": "m0:1", "tags": tags}], "settings": settings}
    assert seen({"replSetGetConfig": 1}, {"config": config, "ok": 1.0}) == {
        "config": {"members": [{"host": "[::1]:27018", "tags": tags}], "settings": settings},
        "ok": 1.0,
    }
    shown = {name: "[::1]:27018" for name in tags}
    given = {"members": [{"host": "[::1]:27018", "tags": shown}], "settings": settings}
    sent = with_mongods(request({"replSetReconfig": given}), SHOWN).document["replSetReconfig"]
    assert sent == {"members": [{"host": "m0:1", "tags": shown}], "settings": settings}
    status = {"members": [{"name": "m0:1", "infoMessage": "m0:1", "host": "m0:1"}], "name": "m0:1"}
    assert seen({"replSetGetStatus": 1}, status) == {
        "members": [{"name": "[::1]:27018", "infoMessage": "m0:1", "host": "m0:1"}],
        "name": "m0:1",
    }
    requested = {"syncFromRequested": "m1:1", "prevSyncTarget": "m0:1", "ok": 1.0}
    assert seen({"replSetSyncFrom": "m1:1"}, requested) == {
        "syncFromRequested": "d1:1",
        "prevSyncTarget": "[::1]:27018",
        "ok": 1.0,
    }


def test_the_progress_of_replication_names_daemons() -> None:
    def repl(address: str) -> dict[str, Any]:
        return {"repl": {"tags": {"host": "m1:1"}, "replicationProgress": [{"host": address, "memberId": 1}]}}

    assert seen({"serverStatus": 1, "repl": 1}, repl("m1:1")) == repl("d1:1")


def test_a_server_names_itself_as_its_daemon() -> None:
    progress, shown_progress = [{"host": "m1:1"}, {"host": "m2:1"}], [{"host": "d1:1"}, {"host": "m2:1"}]
    repl = {"me": "m0:1", "hosts": ["m0:1", "m2:1"], "replicationProgress": progress}
    shown_repl = {"me": "[::1]:27018", "hosts": ["[::1]:27018"], "replicationProgress": shown_progress}
    status = {"host": "vm:1", "repl": repl, "ok": 1.0}
    shown = {"host": "[::1]:27018", "repl": shown_repl, "ok": 1.0}
    assert seen({"serverStatus": 1}, status) == shown
    assert seen({"getDiagnosticData": 1}, {"data": {"serverStatus": status}}) == {"data": {"serverStatus": shown}}
    explanation = {"serverInfo": {"host": "vm", "port": 1, "version": "6.0.5"}}
    for command in ({"explain": {"find": "c"}}, {"aggregate": "c", "pipeline": [], "explain": True}):
        assert seen(command, explanation) == {"serverInfo": {"host": "::1", "port": 27018, "version": "6.0.5"}}


@pytest.mark.parametrize("command", ["replSetGetStatus", "serverStatus", "explain", "currentOp", "getCmdLineOpts"])
def test_errors_are_left_alone(command: str) -> None:
    error = {"ok": 0.0, "errmsg": "no", "code": 13, "codeName": "Unauthorized"}
    assert seen({command: 1}, error) == error


def test_a_configuration_with_daemons_reaches_the_mongod_with_mongods() -> None:
    members = [{"_id": 0, "host": "[::1]:27018"}, {"_id": 1, "host": "d1:1"}, {"_id": 2, "host": "new:1"}]
    sent = with_mongods(request({"replSetReconfig": {"_id": "s", "members": members}}), SHOWN).document
    assert [member["host"] for member in sent["replSetReconfig"]["members"]] == ["m0:1", "m1:1", "new:1"]
    assert with_mongods(request({"replSetSyncFrom": "d1:1"}), SHOWN).document["replSetSyncFrom"] == "m1:1"
    assert with_mongods(request({"replSetSyncFrom": "m1:1"}), SHOWN).document["replSetSyncFrom"] == "m1:1"


@pytest.mark.parametrize(
    ("named", "db", "expected"),
    [
        ("system.replset", "local", True),
        ("system.replset", "admin", False),
        ("oplog.rs", "local", False),
        (Binary(bytes(16), 4), "local", False),
    ],
)
def test_the_stored_configuration_is_found_by_its_name(named: object, db: str, expected: bool) -> None:
    command = Request(OpMsg(op_msg(encode({"find": named, "$db": db}), request_id=1)))
    assert names_members(command) is expected


def test_only_stages_that_name_the_server_are_followed_by_its_address() -> None:
    plain = request({"aggregate": "c", "pipeline": [{"$match": {"$indexStats": 1}}]})
    assert with_own_host(plain, "d0:1") is plain
    naming = request({"aggregate": "c", "pipeline": [{"$indexStats": {}}, {"$limit": 1}]})
    pipeline = with_own_host(naming, "d0:1").document["pipeline"]
    named = {"$cond": [{"$eq": [{"$type": "$host"}, "string"]}, {"$literal": "d0:1"}, "$$REMOVE"]}
    assert pipeline == [{"$indexStats": {}}, {"$set": {"host": named}}, {"$limit": 1}]


@pytest.mark.parametrize("explain", [False, True])
def test_explained_pipelines_have_the_stages_of_the_client(explain: bool) -> None:
    naming = request({"aggregate": 1, "pipeline": [{"$currentOp": {}}], "explain": explain})
    assert (with_own_host(naming, "d0:1") is naming) is explain
