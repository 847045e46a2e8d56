"""Sessions end by themselves, and privileges are read as MongoDB means them."""

import asyncio
from typing import Any

import pytest

from shardwright.console.sessions import SESSIONS_MAX, Rights, Sessions
from shardwright.console.settings import Settings

AWAY = "mongodb://127.0.0.1:1/"


def test_an_idle_session_ends() -> None:
    async def run() -> None:
        sessions = Sessions(Settings(AWAY, idle_seconds=60))
        idle, used = await sessions.start_open(), await sessions.start_open()
        idle.used -= 61
        used.used -= 59
        await sessions.end_idle_now()
        assert sessions.found(idle.token) is None
        assert sessions.found(used.token) is used
        await sessions.close()

    asyncio.run(run())


def test_there_are_not_too_many_sessions() -> None:
    async def run() -> None:
        sessions = Sessions(Settings(AWAY))
        first = await sessions.start_open()
        for _ in range(SESSIONS_MAX):
            await sessions.start_open()
        assert len(sessions) == SESSIONS_MAX
        assert sessions.found(first.token) is None
        await sessions.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("resource", "db", "collection", "may"),
    [
        ({"cluster": True}, None, "", True),
        ({"cluster": True}, "shop", "orders", False),
        ({"anyResource": True}, "config", "settings", True),
        ({"db": "", "collection": ""}, "shop", "orders", True),
        ({"db": "", "collection": ""}, "config", "settings", False),
        ({"db": "", "collection": ""}, "shop", "system.views", False),
        ({"db": "shop", "collection": ""}, "shop", "orders", True),
        ({"db": "shop", "collection": ""}, "other", "orders", False),
        ({"db": "config", "collection": "settings"}, "config", "settings", True),
        ({"db": "shop", "collection": "orders"}, None, "", False),
    ],
)
def test_resources_of_privileges(resource: dict[str, Any], db: str | None, collection: str, may: bool) -> None:
    rights = Rights(({"resource": resource, "actions": ["update"]},), ())
    assert rights.may("update", db, collection) is may
    assert not rights.may("remove", db, collection)
