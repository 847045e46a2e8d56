"""Changes of sharding and of roles in the audit log of a router, with the error codes of failed ones."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pymongo.errors import OperationFailure

from shardwright.wire.error_codes import ErrorCode
from tests.integration.routers import extra_router
from tests.integration.sharded import LOWER, UPPER, Documents
from tests.local_cluster import Client, RunningCluster, client_of


@pytest.fixture(scope="module")
def audit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The audit log of the router."""
    return tmp_path_factory.mktemp("audit") / "audit.json"


@pytest.fixture(scope="module")
def audited(cluster: RunningCluster, audit: Path) -> Iterator[Client]:
    """A client of a router with an audit log."""
    options = ("--audit-destination", "file", "--audit-path", str(audit))
    with extra_router(cluster, *options) as (address, _), client_of(address) as client:
        yield client


@pytest.fixture
def known(audited: Client, audit: Path) -> int:
    """Number of events before the test."""
    audited.admin.command("ping")
    return len(audit.read_text().splitlines())


def told(audit: Path, known: int) -> list[tuple[str, int, dict[str, Any]]]:
    """The later events: their names, codes and parameters."""
    events = [json.loads(line) for line in audit.read_text().splitlines()[known:]]
    return [(each["atype"], each["result"], each["param"]) for each in events]


def test_sharding_changes(audited: Client, audit: Path, known: int, placed: Documents) -> None:
    ns, database = placed.full_name, placed.database.name
    placed.insert_many([{"key": number, "other": number} for number in range(100)])
    by_other = {"key": {"other": 1}, "numInitialChunks": 2}
    bounds = [{"key": 100}, {"key": 500}]
    steps: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"balancerStart": 1}, {}),
        ({"balancerStop": 1}, {}),
        ({"split": ns, "middle": {"key": 100}}, {"ns": ns, "middle": {"key": 100}}),
        ({"moveChunk": ns, "find": {"key": 100}, "to": UPPER}, {"ns": ns, "find": {"key": 100}, "to": UPPER}),
        (
            {"moveRange": ns, "min": {"key": 100}, "max": {"key": 500}, "toShard": LOWER},
            {"ns": ns, "min": {"key": 100}, "max": {"key": 500}, "toShard": LOWER},
        ),
        ({"split": ns, "middle": {"key": 200}}, {"ns": ns, "middle": {"key": 200}}),
        ({"mergeChunks": ns, "bounds": bounds}, {"ns": ns, "bounds": bounds}),
        ({"addShardToZone": LOWER, "zone": "audited"}, {"shard": LOWER, "zone": "audited"}),
        (
            {"updateZoneKeyRange": ns, "min": {"key": 100}, "max": {"key": 200}, "zone": "audited"},
            {"ns": ns, "min": {"key": 100}, "max": {"key": 200}, "zone": "audited"},
        ),
        (
            {"updateZoneKeyRange": ns, "min": {"key": 100}, "max": {"key": 200}, "zone": None},
            {"ns": ns, "min": {"key": 100}, "max": {"key": 200}},
        ),
        ({"removeShardFromZone": LOWER, "zone": "audited"}, {"shard": LOWER, "zone": "audited"}),
        ({"configureCollectionBalancing": ns, "chunkSize": 2}, {"ns": ns, "chunkSize": 2}),
        ({"reshardCollection": ns, **by_other}, {"ns": ns, **by_other}),
        ({"movePrimary": database, "to": UPPER}, {"ns": database, "to": UPPER}),
    ]
    for command, _ in steps:
        audited.admin.command(command)
    assert told(audit, known) == [(next(iter(command)), 0, parameters) for command, parameters in steps]


def test_changes_that_fail(audited: Client, audit: Path, known: int) -> None:
    for command in (
        {"reshardCollection": "missing.c", "key": {"a": 1}},
        {"addShard": "127.0.0.1:1", "name": "x"},
        {"removeShard": "missing"},
    ):
        with pytest.raises(OperationFailure):
            audited.admin.command(command)
    assert told(audit, known) == [
        ("reshardCollection", ErrorCode.NamespaceNotFound, {"ns": "missing.c", "key": {"a": 1}}),
        ("addShard", ErrorCode.HostUnreachable, {"shard": "x", "connectionString": "127.0.0.1:1"}),
        ("removeShard", ErrorCode.ShardNotFound, {"shard": "missing"}),
    ]


def test_role_changes(audited: Client, audit: Path, known: int) -> None:
    reads = [{"resource": {"db": "audited", "collection": "c"}, "actions": ["find"]}]
    role, user = {"role": "clerk", "db": "audited"}, {"user": "ann", "db": "audited"}
    steps: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"createRole": "clerk", "privileges": reads, "roles": []}, {**role, "privileges": reads, "roles": []}),
        ({"updateRole": "clerk", "roles": ["read"]}, {**role, "roles": ["read"]}),
        ({"revokeRolesFromRole": "clerk", "roles": ["read"]}, {**role, "roles": ["read"]}),
        ({"grantRolesToRole": "clerk", "roles": ["dbAdmin"]}, {**role, "roles": ["dbAdmin"]}),
        ({"revokePrivilegesFromRole": "clerk", "privileges": reads}, {**role, "privileges": reads}),
        ({"grantPrivilegesToRole": "clerk", "privileges": reads}, {**role, "privileges": reads}),
        ({"createUser": "ann", "pwd": "unsaid", "roles": []}, {**user, "roles": []}),
        ({"grantRolesToUser": "ann", "roles": ["clerk"]}, {**user, "roles": ["clerk"]}),
        ({"revokeRolesFromUser": "ann", "roles": ["clerk"]}, {**user, "roles": ["clerk"]}),
        ({"dropRole": "clerk"}, role),
        ({"dropAllRolesFromDatabase": 1}, {"db": "audited"}),
        ({"dropAllUsersFromDatabase": 1}, {"db": "audited"}),
    ]
    for command, _ in steps:
        audited.audited.command(command)
    assert told(audit, known) == [(next(iter(command)), 0, parameters) for command, parameters in steps]
    with pytest.raises(OperationFailure):
        audited.audited.command("grantRolesToRole", "clerk", roles=["read"])
    assert told(audit, known)[-1] == ("grantRolesToRole", ErrorCode.RoleNotFound, {**role, "roles": ["read"]})
    assert "unsaid" not in audit.read_text()
