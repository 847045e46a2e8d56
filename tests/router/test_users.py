"""Users and roles: the router's replies beside a mongod's, and that the config servers store them."""

from collections.abc import Iterator
from typing import Any, Final

import pytest
from pymongo.errors import OperationFailure

from tests.local_cluster import Client, RunningCluster

Command = dict[str, Any]

DB: Final = "users_and_roles"
VOLATILE: Final = frozenset({"$clusterTime", "operationTime", "electionId", "opTime", "userId"})
PRIVILEGE: Final = {"resource": {"db": DB, "collection": "c"}, "actions": ["find"]}


@pytest.fixture(scope="module")
def router(cluster: RunningCluster) -> Iterator[Client]:
    with cluster.direct("router.0") as connected:
        yield connected
        _clear(connected)


@pytest.fixture(scope="module")
def plain(cluster: RunningCluster) -> Iterator[Client]:
    """A shard's mongod, where users of that database are its own."""
    with cluster.direct("shard1.0.mongod") as connected:
        yield connected
        _clear(connected)


def _clear(client: Client) -> None:
    client[DB].command("dropAllUsersFromDatabase", 1)
    client[DB].command("dropAllRolesFromDatabase", 1)


def run(client: Client, command: Command) -> Any:  # noqa: ANN401 - any BSON value
    try:
        return _stable(client[DB].command(command))
    except OperationFailure as error:
        return _stable(error.details)


def _stable(value: Any) -> Any:  # noqa: ANN401 - any BSON value
    if isinstance(value, dict):
        return {name: _stable(each) for name, each in value.items() if name not in VOLATILE}
    return [_stable(each) for each in value] if isinstance(value, list) else value


COMMANDS: Final[list[Command]] = [
    {"usersInfo": 1},
    {"createRole": "reader", "privileges": [PRIVILEGE], "roles": []},
    {"createRole": "reader", "privileges": [PRIVILEGE], "roles": []},
    {"createRole": "heir", "privileges": [], "roles": ["reader"], "writeConcern": {"w": 1}},
    {"updateRole": "heir", "roles": []},
    {"grantRolesToRole": "heir", "roles": ["reader", "read"]},
    {"revokeRolesFromRole": "heir", "roles": ["read"]},
    {"grantPrivilegesToRole": "heir", "privileges": [{**PRIVILEGE, "actions": ["insert"]}]},
    {"revokePrivilegesFromRole": "heir", "privileges": [{**PRIVILEGE, "actions": ["insert"]}]},
    {"rolesInfo": ["reader", "heir", "read"], "showPrivileges": True},
    {
        "createUser": "ada",
        "pwd": "secret",
        "roles": ["heir"],
        "customData": {"a": 1},
        "writeConcern": {"w": "majority"},
    },
    {"createUser": "ada", "pwd": "secret", "roles": []},
    {"createUser": "bob", "pwd": "secret", "roles": ["nonsense"]},
    {"createUser": "bob", "roles": []},
    {"updateUser": "ada", "customData": {"a": 2}},
    {"updateUser": "nobody", "pwd": "secret"},
    {"grantRolesToUser": "ada", "roles": ["readWrite"]},
    {"revokeRolesFromUser": "ada", "roles": ["heir"]},
    {"usersInfo": "ada"},
    {"usersInfo": {"user": "ada", "db": DB}, "showPrivileges": True},
    {"usersInfo": 1, "filter": {"customData.a": 2}, "comment": "who"},
    {"dropUser": "ada"},
    {"dropUser": "ada"},
    {"dropRole": "reader"},
    {"dropAllUsersFromDatabase": 1},
    {"dropAllRolesFromDatabase": 1},
    {"invalidateUserCache": 1},
]


def test_as_a_mongod_answers(router: Client, plain: Client) -> None:
    for command in COMMANDS:
        assert run(router, command) == run(plain, command), command


def test_stored_on_the_config_servers(router: Client, cluster: RunningCluster) -> None:
    run(router, {"createUser": "stored", "pwd": "secret", "roles": []})
    try:
        with cluster.direct("config.0.mongod") as config:
            assert config.admin["system.users"].find_one({"_id": f"{DB}.stored"}) is not None
        with cluster.direct("router.1") as other:
            (user,) = run(other, {"usersInfo": "stored"})["users"]
        assert user["user"] == "stored"
    finally:
        _clear(router)


@pytest.mark.parametrize("w", [0, 2, "tag"])
def test_other_write_concerns_are_refused(router: Client, w: int | str) -> None:
    refused = run(router, {"createUser": "ada", "pwd": "secret", "roles": [], "writeConcern": {"w": w}})
    assert (refused["code"], refused["codeName"]) == (72, "InvalidOptions")
    assert refused["errmsg"].startswith("Invalid replication write concern.")
    assert run(router, {"usersInfo": 1})["users"] == []


def test_nonces_differ(router: Client, plain: Client) -> None:
    first, second = (run(router, {"getnonce": 1}) for _ in range(2))
    assert first["nonce"] != second["nonce"]
    assert len(first["nonce"]) == len(run(plain, {"getnonce": 1})["nonce"])
    assert first.keys() == second.keys() == {"nonce", "ok"}
