"""Users and roles are carried with their credentials, and followed."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest

from shardwright.sync import store as stores
from shardwright.sync.ends import End
from shardwright.sync.replication import Filter
from shardwright.sync.store import LeaseLostError
from shardwright.sync.users import Users, changes
from tests.sync.running import Client, Ends
from tests.sync.test_lease import opened
from tests.sync.writers import DATABASE


def account(name: str, role: str = "read") -> dict[str, Any]:
    return {"_id": name, "db": name.partition(".")[0], "user": name.partition(".")[2], "roles": [role]}


def accounts(*every: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {each["_id"]: each for each in every}


def test_accounts_of_the_target_stay_and_carried_ones_follow() -> None:
    source = accounts(account("admin.root", "a"), account("shop.clerk", "write"), account("shop.new"), account("x.y"))
    target = accounts(account("admin.root", "b"), account("shop.clerk"), account("shop.gone"), account("shop.own"))
    found = changes(source, target, ["shop.clerk", "shop.gone"], Filter(exclude=frozenset({"x"})))
    assert [each["_id"] for each in found.new] == ["shop.new"]
    assert [each["_id"] for each in found.changed] == ["shop.clerk"]
    assert [each["_id"] for each in found.drops] == ["shop.gone"]
    assert found.carried == {"shop.clerk", "shop.new"}
    assert found.kept == {"admin.root"}


def test_an_id_that_each_deployment_gives_is_no_difference() -> None:
    source, target = accounts({**account("a.b"), "userId": 1}), accounts({**account("a.b"), "userId": 2})
    assert not changes(source, target, ["a.b"], Filter()).changed


def credentials(client: Client) -> list[Any]:
    command = {"usersInfo": {"forAllDBs": True}, "showCredentials": True, "filter": {"db": DATABASE}}
    found = client.admin.command(command)["users"]
    return sorted((each["_id"], each["credentials"], each["roles"]) for each in found)


def roles(client: Client) -> list[Any]:
    found = client[DATABASE].command("rolesInfo", 1, showPrivileges=True)["roles"]
    return sorted((each["_id"], each["privileges"]) for each in found)


@contextmanager
def without_users(ends: Ends) -> Iterator[None]:
    try:
        yield
    finally:
        for client in (ends.source, ends.target):
            client[DATABASE].command("dropAllUsersFromDatabase")
            client[DATABASE].command("dropAllRolesFromDatabase")


@pytest.mark.matrix(share=0.3)
@pytest.mark.parametrize("kinds", ["ends", "to_cluster", "from_genuine"])
def test_users_and_roles_are_carried_and_followed(kinds: str, request: pytest.FixtureRequest) -> None:
    ends: Ends = request.getfixturevalue(kinds)
    source, target = ends.source[DATABASE], ends.target[DATABASE]
    source.items.insert_one({})
    with without_users(ends):
        privilege = {"resource": {"db": DATABASE, "collection": "items"}, "actions": ["find"]}
        source.command("createRole", "looker", privileges=[privilege], roles=[])
        source.command("createUser", "ann", pwd="pencil", roles=["looker"])
        source.command("createUser", "own", pwd="source", roles=[])
        target.command("createUser", "own", pwd="target", roles=[])
        with ends.syncing("--users") as process:
            progress = process.wait_for(lambda progress: progress["canCommit"])
            assert f"the user or role {DATABASE}.own of the target stays as it is" in progress["notes"]
            one, other = credentials(ends.source), credentials(ends.target)
            assert one[0] == other[0]
            assert one[1] != other[1]
            assert roles(ends.source) == roles(ends.target)
            source.command("updateUser", "ann", pwd="crayon")
            source.command("createUser", "bob", pwd="pencil", roles=["read"])
            process.wait_for(lambda _: [each[0] for each in credentials(ends.target)] == NAMES)
            process.wait_for(lambda _: credentials(ends.target)[0] == credentials(ends.source)[0])
            source.command("updateRole", "looker", privileges=[])
            process.wait_for(lambda _: roles(ends.target) == roles(ends.source))
            source.command("dropUser", "ann")
            process.wait_for(lambda _: [each[0] for each in credentials(ends.target)] == NAMES[1:])


async def unsaved(_: object) -> None:
    """Save nothing."""


@pytest.mark.parametrize("stalls_before", ["_mergeAuthzCollections", "dropUser"])
def test_a_stalled_process_brings_no_user_back(ends: Ends, stalls_before: str) -> None:
    """It stalls before a command, and another process follows the source in the meantime."""
    source, target = ends.source[DATABASE], ends.target[DATABASE]

    async def run() -> None:
        async with opened(ends) as store, opened(ends) as other:
            one, two = End("source", ends.uris[0]), End("target", ends.uris[1])
            await store.acquire()
            former = Users(one, two, Filter(), {}, store)
            if stalls_before == "dropUser":
                await former.match(unsaved)
                source.command("updateUser", "ann", pwd="crayon")
            send = two.command

            async def stall(database: str, command: dict[str, Any]) -> dict[str, Any]:
                if stalls_before in command and not other.term:
                    over = {"$set": {"until": datetime.fromtimestamp(0, UTC)}}
                    ends.target["shardwright"]["sync.leases"].update_one({}, over)
                    await other.acquire()
                    source.command("dropUser", "ann")
                    await Users(one, two, Filter(), {"users": [f"{DATABASE}.ann"]}, other).match(unsaved)
                return await send(database, command)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(stores, "LEASE_SECONDS", 0.0)
                patch.setattr(two, "command", stall)
                await store.check_lease(is_doubtful=True)
                if stalls_before == "dropUser":
                    with pytest.raises(LeaseLostError):
                        await former.match(unsaved)
                else:
                    await former.match(unsaved)
            await one.close()
            await two.close()

    with without_users(ends):
        source.command("createUser", "ann", pwd="pencil", roles=[])
        asyncio.run(run())
        assert not credentials(ends.target)
        assert not [each for each in ends.target.admin.list_collection_names() if each.startswith("temp")]
        assert not target.command("usersInfo")["users"]


NAMES = [f"{DATABASE}.{each}" for each in ("ann", "bob", "own")]
