"""Dumping and restoring users and roles: what mongodump and mongorestore send, as users with the roles for that."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, Final

import pytest
from pymongo import WriteConcern
from pymongo.errors import OperationFailure

from tests.access_control.conftest import PlainMongod
from tests.access_control.users import PASSWORD, user_of
from tests.local_cluster import Client, RunningCluster

DB: Final = "shop"
MERGE: Final = {"tempUsersCollection": "admin.tempusers", "tempRolesCollection": "admin.temproles"}
"""The names that mongorestore uses unless it is given others."""

FIND_ONLY: Final = {"resource": {"db": "shop", "collection": "goods"}, "actions": ["find"]}
CREATING: Final = ["createUser", "createRole", "grantRole", "revokeRole"]
ROLES: Final[Mapping[str, list[str]]] = {"keeper": ["backup"], "bringer": ["restore"], "creator": ["creating"]}
"""The users of these tests; the last one may restore without ``drop``, and reads one of the two collections."""

Dump = dict[str, list[dict[str, Any]]]


@contextmanager
def dumpable(root: Client) -> Iterator[None]:
    """The users of these tests exist during the block, and one with a role of its own, who is dumped."""
    privileges = [
        {"resource": {"db": "", "collection": ""}, "actions": CREATING},
        {"resource": {"db": "admin", "collection": "tempusers"}, "actions": ["find"]},
    ]
    root.admin.command("createRole", "creating", privileges=privileges, roles=[])
    for user, roles in ROLES.items():
        root.admin.command("createUser", user, pwd=PASSWORD, roles=roles)
    create_dumped(root)
    try:
        yield
    finally:
        drop_dumped(root)
        for user in ROLES:
            root.admin.command("dropUser", user)
        root.admin.command("dropRole", "creating")


def create_dumped(root: Client) -> None:
    root[DB].command("createRole", "dumping", privileges=[FIND_ONLY], roles=[])
    root[DB].command("createUser", "dumped", pwd=PASSWORD, roles=["dumping"])


def drop_dumped(root: Client) -> None:
    root[DB].command("dropAllUsersFromDatabase")
    root[DB].command("dropAllRolesFromDatabase")


def dump(client: Client) -> Dump:
    """As ``mongodump --dumpDbUsersAndRoles``: the users, roles and version of one database."""
    assert client.admin.command("getParameter", 1, authSchemaVersion=1)["authSchemaVersion"] == 5
    found = {name: list(client.admin[f"system.{name}"].find({"db": DB})) for name in ("users", "roles")}
    version = client.admin["system.version"].find_one({"_id": "authSchema"})
    assert version == {"_id": "authSchema", "currentVersion": 5}
    return found


def restore(client: Client, dumped: Dump, *, drop: bool) -> None:
    """As ``mongorestore --restoreDbUsersAndRoles``."""
    assert client.admin.command("getParameter", 1, authSchemaVersion=1)["authSchemaVersion"] == 5
    existing = client.admin.list_collection_names()
    majority = client.get_database("admin", write_concern=WriteConcern("majority"))
    for name in ("users", "roles"):
        if f"temp{name}" in existing:
            majority.drop_collection(f"temp{name}")
        majority[f"temp{name}"].insert_many(dumped[name], ordered=False)
    try:
        merge = {"_mergeAuthzCollections": 1, **MERGE, "drop": drop, "db": DB}
        client.admin.command({**merge, "writeConcern": {"w": "majority"}})
    finally:
        for name in ("roles", "users"):
            majority.drop_collection(f"temp{name}")


@pytest.mark.parametrize("drop", [False, True])
def test_users_and_roles_are_dumped_and_restored_again_and_again(closed: RunningCluster, drop: bool) -> None:
    with (
        user_of(closed, "chief") as root,
        dumpable(root),
        user_of(closed, "keeper") as keeper,
        user_of(closed, "bringer") as bringer,
    ):
        dumped = dump(keeper)
        assert [each["user"] for each in dumped["users"]] == ["dumped"]
        bringer.admin.tempusers.insert_one({"left": "by a restore that was interrupted"})
        for _ in range(2):
            drop_dumped(root)
            root[DB].command("createUser", "later", pwd=PASSWORD, roles=[])
            restore(bringer, dumped, drop=drop)
            assert not {"tempusers", "temproles"} & {*root.admin.list_collection_names()}
            users = {each["user"] for each in root[DB].command("usersInfo")["users"]}
            assert users == ({"dumped"} if drop else {"dumped", "later"})
            with user_of(closed, "dumped", authSource=DB) as client:
                client[DB].goods.find_one()
                with pytest.raises(OperationFailure, match="not authorized"):
                    client[DB].plain.find_one()


def outcomes(client: Client) -> list[tuple[int | None, str]]:
    """The codes and texts of merges, which all read collections that do not exist."""
    found: list[tuple[int | None, str]] = []
    for merge in (
        {"tempUsersCollection": "admin.tempusers", "tempRolesCollection": ""},
        {"tempUsersCollection": "", "tempRolesCollection": "admin.temproles"},
        {"tempUsersCollection": "admin.other", "tempRolesCollection": ""},
        MERGE,
    ):
        for drop in (False, True):
            command = {"_mergeAuthzCollections": 1, **merge, "db": "scratch", "drop": drop}
            reply = client.admin.command(command, check=False)
            found.append((reply.get("code"), reply.get("errmsg", "").partition(" command")[0]))
    return found


def test_who_may_merge_users_is_as_on_a_mongod(closed: RunningCluster, plain: PlainMongod) -> None:
    with ExitStack() as stack:
        for root in (stack.enter_context(user_of(closed, "chief")), stack.enter_context(plain.client("root"))):
            stack.enter_context(dumpable(root))
        for user in (*ROLES, "registrar", "chief"):
            client = stack.enter_context(user_of(closed, user))
            other = stack.enter_context(plain.client(user))
            assert outcomes(client) == outcomes(other), user
            if user == "creator":
                assert [code for code, _ in outcomes(client)] == [None, 13, 13, 13, 13, 13, 13, 13]
            if user == "bringer":
                assert [code for code, _ in outcomes(client)] == [None, None, None, None, 13, 13, None, None]


def test_other_collections_of_admin_are_not_dropped(closed: RunningCluster) -> None:
    with user_of(closed, "chief") as root:
        with pytest.raises(OperationFailure, match="Cannot drop collection in 'admin' database in sharded cluster"):
            root.admin.drop_collection("system.users")
        with pytest.raises(OperationFailure, match="Cannot drop collection in 'admin' database in sharded cluster"):
            root.admin.drop_collection("other")
