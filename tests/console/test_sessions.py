"""Sessions end by themselves, and privileges are read as MongoDB means them."""

import asyncio
from typing import Any

import pytest
from pymongo.errors import OperationFailure, ServerSelectionTimeoutError

from shardwright.console.reader import LoggedOut, Reader
from shardwright.console.sessions import FAILURES_MAX, SESSIONS_MAX, Rights, Sessions
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


class _Refusing:
    """Log-ins that wait, and then fail."""

    def __init__(self, error: Exception) -> None:
        self.tried = 0
        self._error = error

    def client(self, **_: object) -> Any:  # noqa: ANN401 - a client
        attempts = self

        class Admin:
            async def command(self, _name: str) -> None:
                attempts.tried += 1
                await asyncio.sleep(0.01)
                raise attempts._error

        class Client:
            admin = Admin()

            async def close(self) -> None: ...

        return Client()


def _errors_of(sessions: Sessions, refusing: _Refusing, count: int) -> list[str]:
    """Try log-ins at once, and return their errors."""

    async def run() -> list[str]:
        attempts = [sessions.log_in("10.0.0.1", "monitor", f"guess{number}", "admin") for number in range(count)]
        return [str(error) for error in await asyncio.gather(*attempts, return_exceptions=True)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sessions, "_client", refusing.client)
        return asyncio.run(run())


def test_parallel_failures_are_limited_too() -> None:
    refusing = _Refusing(OperationFailure("Authentication failed.", 18))
    errors = _errors_of(Sessions(Settings(AWAY)), refusing, 40)
    assert refusing.tried == FAILURES_MAX
    assert sum("too many failed log-ins" in each for each in errors) == 40 - FAILURES_MAX


def test_an_absent_router_counts_as_no_failure() -> None:
    refusing = _Refusing(ServerSelectionTimeoutError("no router"))
    sessions = Sessions(Settings(AWAY))
    for _ in range(FAILURES_MAX + 1):
        assert "no router answers" in _errors_of(sessions, refusing, 1)[0]


def test_a_changed_password_is_not_a_missing_right() -> None:
    class Client:
        codec_options = None

        def __getitem__(self, _db: str) -> "Client":
            return self

        async def command(self, *_: object, **__: object) -> None:
            raise OperationFailure("Authentication failed.", 18)

    client: Any = Client()
    with pytest.raises(LoggedOut, match="refused the log-in"):
        asyncio.run(Reader(client).command({"ping": 1}))
