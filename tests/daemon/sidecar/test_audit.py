"""The audit log of a sidecar, whatever its mongod answers; without a mongod."""

import json
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from shardwright.daemon.audit_log import AuditLog, AuditOptions
from shardwright.daemon.document_filter import parse_filter
from shardwright.daemon.users import SYSTEM, UserName
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.message import MORE_TO_COME
from shardwright.wire.transport.cluster_auth import ClusterAuthMode
from tests.daemon.sidecar import test_log_ins
from tests.daemon.sidecar.test_log_ins import ANN, AUTHENTICATE, CLIENT, PROOF, START, FakeClient

_ANN: Final = ANN.to_document()
_READS: Final = [{"role": "read", "db": "admin"}]
_SCRAM: Final = {**_ANN, "mechanism": "SCRAM-SHA-256"}
_SYSTEM_START: Final = {**START, "payload": b"n,,n=__system,r=nonce", "$db": "local"}
_GONE: Final = ("logout", 0, {"reason": "Client has disconnected", "initialUsers": [_ANN], "updatedUsers": []})

answers = partial(test_log_ins.answers, mode=ClusterAuthMode.KEY_FILE)

Told = tuple[str, int, dict[str, Any]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "audit.json"


@pytest.fixture
def log(path: Path) -> Iterator[AuditLog]:
    opened = AuditLog(AuditOptions(path, parse_filter({})))
    yield opened
    opened.file.close()


def events(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def told(path: Path) -> list[Told]:
    """Return the recorded events."""
    return [(each["atype"], each["result"], each["param"]) for each in events(path)]


def logged_in(user: UserName) -> FakeClient:
    """A client who has logged in before, at the mongod and at the daemon."""
    client = FakeClient(user)
    client.state.user = client.state.logged_in = user
    return client


def test_a_log_in_and_what_follows(log: AuditLog, path: Path) -> None:
    answers(FakeClient(ANN), START, PROOF, {"create": "c", "$db": "shop"}, audit=log)
    assert told(path) == [("authenticate", 0, _SCRAM), ("createCollection", 0, {"ns": "shop"}), _GONE]
    assert len({str(each["uuid"]) for each in events(path)}) == 1
    for event in events(path):
        assert list(event) == ["atype", "ts", "uuid", "local", "remote", "users", "roles", "param", "result"]
        assert (event["users"], event["roles"]) == ([_ANN], _READS)
        assert (event["local"], event["remote"]) == ({"ip": "192.0.2.2", "port": 6}, {"ip": "192.0.2.1", "port": 5})


def test_a_log_in_that_begins_with_a_hello(log: AuditLog, path: Path) -> None:
    speculative = {name: value for name, value in START.items() if name != "$db"}
    hello = {"hello": 1, "speculativeAuthenticate": {**speculative, "db": "admin"}, "$db": "admin"}
    answers(FakeClient(ANN), hello, PROOF, audit=log)
    assert told(path)[0] == ("authenticate", 0, _SCRAM)


def test_a_wrong_proof(log: AuditLog, path: Path) -> None:
    answers(FakeClient(), START, PROOF, PROOF, audit=log)
    assert told(path) == [("authenticate", 18, _SCRAM)]
    assert (events(path)[0]["users"], events(path)[0]["roles"]) == ([], [])


def test_a_user_whom_the_mongod_does_not_know(log: AuditLog, path: Path) -> None:
    client = FakeClient()
    client.state.fails["saslStart"] = CommandError(18, "Authentication failed.")
    unreadable = {**START, "mechanism": "PLAIN", "payload": b"\0ann\0pencil"}
    answers(client, START, unreadable, audit=log)
    assert told(path) == [
        ("authenticate", 18, _SCRAM),
        ("authenticate", 18, {"user": "", "db": "admin", "mechanism": "PLAIN"}),
    ]


@pytest.mark.parametrize(("proves", "result"), [(ANN, 0), (None, 18)])
def test_a_log_in_that_wants_no_reply(log: AuditLog, path: Path, proves: UserName | None, result: int) -> None:
    answers(FakeClient(proves), START, PROOF, flags=MORE_TO_COME, audit=log)
    assert told(path)[0] == ("authenticate", result, _SCRAM)


def test_members_leave_no_trace(log: AuditLog, path: Path) -> None:
    member = FakeClient(SYSTEM)
    answers(member, _SYSTEM_START, PROOF, {"create": "c", "$db": "shop"}, {"logout": 1, "$db": "local"}, audit=log)
    assert (member.state.logged_in, told(path)) == (None, [])


@pytest.mark.parametrize("proves", [None, SYSTEM])
def test_who_fails_to_log_in_as_a_member_does(log: AuditLog, path: Path, proves: UserName | None) -> None:
    """Also if the mongod takes a key that counts no longer."""
    answers(FakeClient(proves), _SYSTEM_START, PROOF, audit=log, mode=ClusterAuthMode.X509)
    assert told(path) == [("authenticate", 18, {**SYSTEM.to_document(), "mechanism": "SCRAM-SHA-256"})]


def test_a_certificate_that_is_not_of_a_member(log: AuditLog, path: Path) -> None:
    client = FakeClient()
    client.certificate_subject = CLIENT
    answers(client, AUTHENTICATE, audit=log)
    named = {"user": "CN=clerk,O=clients", "db": "$external", "mechanism": "MONGODB-X509"}
    assert told(path) == [("authenticate", 18, named)]


def test_an_explicit_log_out(log: AuditLog, path: Path) -> None:
    answers(logged_in(ANN), {"logout": 1, "$db": "admin"}, audit=log)
    reason = "Client has explicitly logged out from 'admin'"
    assert told(path) == [("logout", 0, {"reason": reason, "initialUsers": [_ANN], "updatedUsers": []})]


_CREATE_USER: Final = {"createUser": "bob", "pwd": "secret", "roles": ["read"], "lsid": {"id": 1}, "$db": "shop"}


@pytest.mark.parametrize(
    ("command", "failure", "expected"),
    [
        (_CREATE_USER, 51003, ("createUser", 51003, {"user": "bob", "db": "shop", "roles": ["read"]})),
        (
            _CREATE_USER,
            13,
            (
                "authCheck",
                13,
                {"command": "createUser", "ns": "shop", "args": {"createUser": "bob", "pwd": "xxx", "roles": ["read"]}},
            ),
        ),
        (
            {"deleteIndexes": "c", "index": "a_1", "$db": "shop"},
            27,
            ("dropIndex", 27, {"ns": "shop", "indexName": "a_1"}),
        ),
        ({"logApplicationMessage": "hi", "$db": "admin"}, 59, ("applicationMessage", 59, {"msg": "hi"})),
        ({"replSetReconfig": {"_id": "s"}, "$db": "admin"}, 103, ("replSetReconfig", 103, {"new": {"_id": "s"}})),
    ],
)
def test_the_result_is_the_code_of_the_mongod(
    log: AuditLog, path: Path, command: Mapping[str, Any], failure: int, expected: Told
) -> None:
    client = logged_in(ANN)
    client.state.fails[next(iter(command))] = CommandError(failure, "refused")
    answers(client, command, audit=log)
    assert told(path) == [expected, _GONE]


def test_what_the_daemon_itself_refuses(log: AuditLog, path: Path) -> None:
    find = {"find": "c", "shardVersion": {}, "$db": "shop"}
    assert answers(logged_in(ANN), find, audit=log) == [{"ok": 0.0, "code": 13}]
    args = {"find": "c", "shardVersion": {}}
    assert told(path) == [("authCheck", 13, {"command": "find", "ns": "shop", "args": args}), _GONE]


@pytest.mark.parametrize(("name", "result"), [("shutdown", 0), ("create", 6)])
def test_a_mongod_that_goes_without_an_answer(log: AuditLog, path: Path, name: str, result: int) -> None:
    client = logged_in(ANN)
    client.state.fails[name] = BackendError("mongod", "is gone", sent=True)
    answers(client, {name: "c", "$db": "admin"}, audit=log)
    assert [each[1] for each in told(path)] == [result, 0]


def test_reads_are_no_events(log: AuditLog, path: Path) -> None:
    answers(logged_in(ANN), {"find": "c", "$db": "shop"}, {"saslStart": 1, "$db": "shop"}, audit=log)
    assert told(path) == [_GONE]
