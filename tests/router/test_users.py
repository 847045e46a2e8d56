"""Users and roles: the router's replies compared with a mongod's, and their storage on the config servers."""

from collections.abc import Iterator
from typing import Any, Final

import bson
import pytest
from bson.raw_bson import RawBSONDocument
from pymongo.errors import OperationFailure

from tests.local_cluster import Client, RunningCluster

Command = dict[str, Any]

DB: Final = "users_and_roles"
VOLATILE: Final = frozenset({"$clusterTime", "operationTime", "electionId", "opTime", "userId"})
RESTRICTION: Final = {"clientSource": ["127.0.0.1", "10.0.0.0/8"], "serverAddress": ["127.0.0.1"]}
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


def run(client: Client, command: Command, db: str = DB) -> Any:  # noqa: ANN401 - any BSON value
    try:
        return _stable(client[db].command(command))
    except OperationFailure as error:
        return _stable(error.details)


def _stable(value: Any) -> Any:  # noqa: ANN401 - any BSON value
    if isinstance(value, dict):
        return {name: _stable(each) for name, each in value.items() if name not in VOLATILE}
    return [_stable(each) for each in value] if isinstance(value, list) else value


def _unordered(value: Any) -> Any:  # noqa: ANN401 - any BSON value
    """Sort all arrays: arrays of built-in roles and of their privileges have no definite order."""
    if isinstance(value, dict):
        return {name: _unordered(each) for name, each in value.items()}
    return sorted(map(_unordered, value), key=str) if isinstance(value, list) else value


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
    {"createUser": "eve", "pwd": "secret", "roles": [], "authenticationRestrictions": [RESTRICTION]},
    {"createUser": "bob", "pwd": "secret", "roles": [], "authenticationRestrictions": [{"clientSource": "nowhere"}]},
    {"usersInfo": "eve", "showAuthenticationRestrictions": True},
    {"usersInfo": ["eve", "ada"], "showAuthenticationRestrictions": True, "showPrivileges": True},
    {"usersInfo": 1, "showAuthenticationRestrictions": True},
    {"usersInfo": {"forAllDBs": True}, "filter": {"db": DB}},
    {"usersInfo": {"forAllDBs": True}, "showPrivileges": True},
    {"usersInfo": 1, "filter": {"$nonsense": 1}},
    {"usersInfo": 3},
    {"updateRole": "heir", "authenticationRestrictions": [{"serverAddress": ["127.0.0.1"]}]},
    {"rolesInfo": "heir", "showAuthenticationRestrictions": True},
    {"rolesInfo": ["heir", {"role": "read", "db": DB}], "showPrivileges": "asUserFragment"},
    {"rolesInfo": ["heir"], "showPrivileges": "asUserFragment", "showAuthenticationRestrictions": True},
    {"rolesInfo": "heir", "showPrivileges": "nonsense"},
    {"rolesInfo": 1, "showBuiltinRoles": True},
    {"rolesInfo": 1, "showBuiltinRoles": True, "showPrivileges": True},
    {"rolesInfo": {"role": "missing", "db": DB}},
    {"dropUser": "eve"},
    {"dropUser": "ada"},
    {"dropUser": "ada"},
    {"dropRole": "reader"},
    {"dropAllUsersFromDatabase": 1},
    {"dropAllRolesFromDatabase": 1},
    {"invalidateUserCache": 1},
]


def test_as_a_mongod_answers(router: Client, plain: Client) -> None:
    for command in COMMANDS:
        assert _unordered(run(router, command)) == _unordered(run(plain, command)), command


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


def test_credentials_are_shown_on_request(router: Client, plain: Client) -> None:
    """Each server draws salts of its own."""
    shown = []
    for client in (router, plain):
        run(client, {"createUser": "shown", "pwd": "secret", "roles": []})
        (user,) = run(client, {"usersInfo": "shown", "showCredentials": True})["users"]
        shown.append({name: sorted(each) for name, each in user.pop("credentials").items()} | user)
        run(client, {"dropUser": "shown"})
    assert shown[0] == shown[1]
    assert {"SCRAM-SHA-1", "SCRAM-SHA-256"} <= shown[0].keys()


def test_users_and_roles_are_merged_as_by_a_mongod(router: Client, plain: Client) -> None:
    """The command sequence of mongorestore."""
    run(plain, {"createUser": "merged", "pwd": "secret", "roles": ["read"]})
    run(plain, {"createRole": "merging", "privileges": [PRIVILEGE], "roles": []})
    user = plain.admin["system.users"].find_one({"user": "merged"})
    role = plain.admin["system.roles"].find_one({"role": "merging"})
    assert user is not None
    assert role is not None
    _clear(plain)
    merge = {"_mergeAuthzCollections": 1, "tempUsersCollection": "admin.tempusers"}
    both = {**merge, "tempRolesCollection": "admin.temproles"}
    wrong: list[Command] = [
        {"_mergeAuthzCollections": 1, "db": DB, "drop": False},
        {**both, "db": "", "drop": False},
        {**merge, "tempRolesCollection": "", "db": DB},
    ]
    replies = []
    for client in (router, plain):
        client.admin.tempusers.insert_one(user)
        client.admin.temproles.insert_one(role)
        run(client, {"createUser": "replaced", "pwd": "secret", "roles": []})
        answers = [run(client, command, "admin") for command in wrong]
        answers += [run(client, {**both, "db": DB, "drop": drop}, "admin") for drop in (False, True)]
        answers += [run(client, {"usersInfo": 1}), run(client, {"rolesInfo": 1, "showPrivileges": True})]
        replies.append(answers)
        for name in ("tempusers", "temproles"):
            client.admin.drop_collection(name)
        _clear(client)
    assert replies[0] == replies[1]
    assert [each["user"] for each in replies[0][-2]["users"]] == ["merged"]


@pytest.mark.parametrize("w", [0, 2, "tag"])
def test_other_write_concerns_are_refused(router: Client, w: int | str) -> None:
    refused = run(router, {"createUser": "ada", "pwd": "secret", "roles": [], "writeConcern": {"w": w}})
    assert (refused["code"], refused["codeName"]) == (72, "InvalidOptions")
    assert refused["errmsg"].startswith("Invalid replication write concern.")
    assert run(router, {"usersInfo": 1})["users"] == []


def test_nonces_differ(router: Client, plain: Client) -> None:
    first, second = (run(router, {"getnonce": 1}) for _ in range(2))
    assert first["nonce"] != second["nonce"]
    # A mongod leaves leading zeros out.
    assert len(first["nonce"]) == 16 >= len(run(plain, {"getnonce": 1})["nonce"])
    assert first.keys() == second.keys() == {"nonce", "ok"}


def repeated(*fields: Command) -> RawBSONDocument:
    """A document with all these fields."""
    elements = b"".join(bson.encode(each)[4:-1] for each in fields)
    return RawBSONDocument((len(elements) + 5).to_bytes(4, "little") + elements + b"\0")


USER: Final = repeated({"user": "x"}, {"db": DB}, {"user": "y"})
ROLE: Final = repeated({"role": "read"}, {"db": DB}, {"db": "other"})
RESTRICTIONS: Final = repeated({"clientSource": ["1.1.1.1"]}, {"clientSource": ["1.1.1.2"]})
REPEATED: Final[list[Command]] = [
    {"usersInfo": USER},
    {"usersInfo": [{"user": "x", "db": DB}, USER]},
    {"usersInfo": repeated({"zz": 1}, {"zz": 2})},
    {"rolesInfo": repeated({"role": "x"}, {"role": "x"}, {"db": DB})},
    {"createRole": "twice", "privileges": [], "roles": [ROLE]},
    {"createRole": "twice", "privileges": [], "roles": [], "authenticationRestrictions": [RESTRICTIONS]},
    {"createUser": "twice", "pwd": "x", "roles": [ROLE]},
    {"createUser": "twice", "pwd": "x", "roles": [], "authenticationRestrictions": [RESTRICTIONS]},
    {"grantRolesToUser": "nobody", "roles": [ROLE]},
    {"revokeRolesFromRole": "nobody", "roles": [ROLE]},
]


@pytest.mark.parametrize("command", REPEATED, ids=lambda command: next(iter(command)))
def test_repeated_fields(router: Client, plain: Client, command: Command) -> None:
    refused = run(router, command)
    assert refused["ok"] == 0.0
    assert refused == run(plain, command)
