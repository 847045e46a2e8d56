"""Users and roles of all databases, from a reader that stands in for a cluster."""

import asyncio
from collections.abc import Mapping
from typing import Any, cast

import pytest

from shardwright.console.reader import Document, Reader, Refused
from shardwright.console.security import user_defined_roles

ROLES = {
    "admin": [{"role": "watcher", "db": "admin", "roles": []}],
    "shop": [{"role": "clerk", "db": "shop", "roles": [{"role": "read", "db": "shop"}]}],
    "stock": [{"role": "packer", "db": "stock", "roles": []}],
    "extern": [{"role": "guest", "db": "extern", "roles": []}],
}
USERS = [{"user": "a", "db": "extern", "roles": [{"role": "clerk", "db": "shop"}]}]


class Cluster:
    """A cluster with the `ROLES`."""

    def __init__(self, *refused: str) -> None:
        self.refused = refused

    async def command(self, command: Mapping[str, Any], db: str = "admin") -> Document:
        name = next(iter(command))
        if name in self.refused:
            raise Refused(f"{name} needs a role", is_of_rights=True)
        if name == "listDatabases":
            return {"databases": [{"name": name} for name in ("admin", "config", "stock")]}
        assert name == "rolesInfo"
        return {"roles": ROLES.get(db, [])}


def test_roles_of_all_databases_are_listed() -> None:
    found = asyncio.run(user_defined_roles(cast("Reader", Cluster()), USERS))
    assert [each["role"] for each in found] == ["watcher", "guest", "clerk", "packer"]


def test_without_a_list_of_databases_those_of_users_and_their_roles_are_read() -> None:
    found = asyncio.run(user_defined_roles(cast("Reader", Cluster("listDatabases")), USERS))
    assert [each["role"] for each in found] == ["watcher", "guest", "clerk"]


def test_roles_that_may_not_be_read_are_a_refusal() -> None:
    with pytest.raises(Refused):
        asyncio.run(user_defined_roles(cast("Reader", Cluster("rolesInfo")), USERS))
