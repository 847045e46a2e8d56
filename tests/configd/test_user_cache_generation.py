"""The generation by which a genuine router notices changes to users or roles."""

from collections.abc import Callable
from typing import Any, Final

import pytest
from bson.objectid import ObjectId
from pymongo import MongoClient
from pymongo.errors import OperationFailure

from shardwright.wire.error_codes import ErrorCode

ConfigClient = MongoClient[dict[str, Any]]

CHANGES: Final[list[dict[str, Any]]] = [
    {"createUser": "generation", "pwd": "pencil", "roles": []},
    {"updateUser": "generation", "pwd": "chalk"},
    {"createRole": "generation", "privileges": [], "roles": []},
    {"grantRolesToUser": "generation", "roles": ["generation"]},
    {"dropUser": "generation"},
    {"dropRole": "generation"},
]


@pytest.fixture
def generation(config_client: ConfigClient) -> Callable[[], ObjectId]:
    """Asks for it."""

    def ask() -> ObjectId:
        found: ObjectId = config_client.admin.command("_getUserCacheGeneration")["cacheGeneration"]
        return found

    return ask


def test_every_change_gives_another_one(config_client: ConfigClient, generation: Callable[[], ObjectId]) -> None:
    for change in CHANGES:
        before = generation()
        assert isinstance(before, ObjectId)
        assert generation() == before
        config_client.admin.command(change)
        assert generation() != before, change


def test_it_is_for_the_admin_database(config_client: ConfigClient) -> None:
    with pytest.raises(OperationFailure) as raised:
        config_client.shop.command("_getUserCacheGeneration")
    assert raised.value.code == ErrorCode.Unauthorized
