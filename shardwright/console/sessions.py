"""Sessions of users, in memory, each with its own connections to the cluster, and their requests.

A password is passed to the driver, which needs it for the session's new connections. It is stored nowhere else. The end
of a session closes its client.
"""

import asyncio
import secrets
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pymongo import AsyncMongoClient
from pymongo.errors import ConfigurationError, OperationFailure, PyMongoError

from shardwright.console.any_value import CLIENT_OPTIONS, value_of
from shardwright.console.metrics import Sampler
from shardwright.console.reader import Document, LoggedOut, Reader, Refused, router_selector
from shardwright.console.settings import Settings
from shardwright.wire.logger import get_logger

_log = get_logger("console.sessions")

SESSIONS_MAX: Final = 200
FAILURES_MAX: Final = 10
REMOTES_MAX: Final = 1000
FAILURE_SECONDS: Final = 60.0
_RIGHTS_SECONDS: Final = 10.0
_OPEN_SECONDS: Final = 30.0
_CLEAN_SECONDS: Final = 15.0
_REFUSED_LOG_IN: Final = frozenset({11, 18, 334})
"""UserNotFound, AuthenticationFailed, MechanismUnavailable."""

_CLIENT_OPTIONS: Final[Mapping[str, Any]] = {
    "appname": "shardwright console",
    "serverSelectionTimeoutMS": 5_000,
    "connectTimeoutMS": 3_000,
    "maxPoolSize": 8,
    "tz_aware": True,
    **CLIENT_OPTIONS,
    "server_selector": router_selector,
}


class LogInError(Exception):
    """A log-in failed; the message is for the user."""


@dataclass(slots=True)
class Session:
    """One user in one browser.

    Attributes:
        csrf: the token that each form carries.
        user: ``name@database``; empty if the cluster has no access control.
        reader: the cluster as this user sees it.
        used: time of the last request, on the monotonic clock.
    """

    token: str
    csrf: str
    user: str
    reader: Reader
    used: float = field(default_factory=time.monotonic)

    @property
    def is_open(self) -> bool:
        """Whether the cluster has no access control."""
        return not self.user

    async def rights(self) -> "Rights":
        """Return the user's privileges, at most ten seconds old.

        Raises:
            LoggedOut: the user has been dropped, or the password has changed.
        """
        if self.is_open:
            return Rights((), (), is_everything=True)

        async def read() -> Rights:
            reply = await self.reader.command({"connectionStatus": 1, "showPrivileges": True})
            found = reply["authInfo"]
            if not found["authenticatedUsers"]:
                raise LoggedOut("the user no longer exists")
            roles = tuple(f"{each['role']}@{each['db']}" for each in found["authenticatedUserRoles"])
            return Rights(tuple(found.get("authenticatedUserPrivileges", ())), roles)

        return await self.reader.kept("rights", _RIGHTS_SECONDS, read)


@dataclass(frozen=True, slots=True)
class Rights:
    """The privileges of a user.

    Attributes:
        privileges: as ``connectionStatus`` shows them.
        is_everything: whether there is no access control.
    """

    privileges: tuple[Mapping[str, Any], ...]
    roles: tuple[str, ...]
    is_everything: bool = False

    def may(self, action: str, db: str | None = None, collection: str = "") -> bool:
        """Whether the user may perform an action on a collection, or on the cluster if ``db`` is None."""
        return self.is_everything or any(
            action in each["actions"] and _includes(each["resource"], db, collection) for each in self.privileges
        )


def _includes(resource: Mapping[str, Any], db: str | None, collection: str) -> bool:
    if resource.get("anyResource"):
        return True
    if db is None:
        return bool(resource.get("cluster"))
    if "db" not in resource:
        return False
    is_system = db in ("config", "local") or collection.startswith("system.")
    if not resource["db"] and not resource["collection"] and is_system:
        return False
    return resource["db"] in ("", db) and resource["collection"] in ("", collection)


class Sessions:
    """All sessions of this process."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._sessions: dict[str, Session] = {}
        self._attempts: dict[str, deque[float]] = {}
        self._anonymous: Reader | None = None

    def __len__(self) -> int:
        return len(self._sessions)

    def found(self, token: str | None) -> Session | None:
        """Return the session of a cookie and mark it as used; None if it has ended."""
        session = self._sessions.get(token or "")
        if session is not None:
            session.used = time.monotonic()
        return session

    async def is_cluster_open(self) -> bool:
        """Whether the cluster has no access control."""
        reader = self._anonymous_reader()

        async def read() -> bool:
            try:
                await reader.command({"listShards": 1})
            except Refused as refused:
                if refused.is_of_rights:
                    return False
                raise
            return True

        return await reader.kept("open", _OPEN_SECONDS, read)

    async def log_in(self, remote: str, name: str, password: str, database: str) -> Session:
        """Start the session of a user.

        Raises:
            LogInError: name or password are wrong, there were too many failures, or no router answers.
        """
        attempts, now = self._attempts_of(remote), time.monotonic()
        if len(attempts) >= FAILURES_MAX:
            raise LogInError("too many failed log-ins from your address: wait a minute")
        attempts.append(now)  # before the answer, so that parallel attempts are limited too
        is_failure = True
        try:
            client = self._client(username=name, password=password, authSource=database or "admin")
            try:
                await client.admin.command("connectionStatus")
            except BaseException:
                await client.close()
                raise
            is_failure = False
        except OperationFailure as error:
            if error.code not in _REFUSED_LOG_IN:
                raise LogInError("the cluster refused the log-in") from error
            _log.warning("Refused a log-in", user=name, database=database, remote=remote)
            raise LogInError("name, password or database are wrong") from error
        except (ConfigurationError, ValueError) as error:
            is_failure = False
            raise LogInError("name or database are not valid") from error
        except PyMongoError as error:
            is_failure = False
            raise LogInError("no router answers: look at the cluster with `shardwright status`") from error
        finally:
            if not is_failure and now in attempts:
                attempts.remove(now)
        session = await self._started(f"{name}@{database or 'admin'}", Reader(client))
        _log.info("Started a session", user=session.user, remote=remote)
        return session

    def _attempts_of(self, remote: str) -> deque[float]:
        """Return the times of the last minute's failed and unanswered log-ins from an address."""
        oldest = time.monotonic() - FAILURE_SECONDS
        if len(self._attempts) > REMOTES_MAX:
            self._attempts = {each: ends for each, ends in self._attempts.items() if ends and ends[-1] > oldest}
        attempts = self._attempts.setdefault(remote, deque())
        while attempts and attempts[0] <= oldest:
            attempts.popleft()
        return attempts

    async def start_open(self) -> Session:
        """Start a session without a user; only for clusters without access control."""
        return await self._started("", self._anonymous_reader())

    async def end(self, session: Session) -> None:
        """End a session and close its connections."""
        if self._sessions.pop(session.token, None) is not None and not session.is_open:
            await session.reader.client.close()
            _log.info("Ended a session", user=session.user)

    async def end_idle(self) -> None:
        """End sessions as they become idle, until cancelled."""
        while True:
            await asyncio.sleep(min(_CLEAN_SECONDS, self._settings.idle_seconds / 2))
            await self.end_idle_now()

    async def end_idle_now(self) -> None:
        """End the sessions that are idle now."""
        latest = time.monotonic() - self._settings.idle_seconds
        for session in [each for each in self._sessions.values() if each.used < latest]:
            await self.end(session)

    async def close(self) -> None:
        """End all sessions."""
        for session in list(self._sessions.values()):
            await self.end(session)
        if self._anonymous is not None:
            await self._anonymous.client.close()

    def _anonymous_reader(self) -> Reader:
        if self._anonymous is None:
            self._anonymous = Reader(self._client())
        return self._anonymous

    async def _started(self, user: str, reader: Reader) -> Session:
        if len(self._sessions) >= SESSIONS_MAX:
            await self.end(min(self._sessions.values(), key=lambda each: each.used))
        session = Session(secrets.token_urlsafe(32), secrets.token_urlsafe(24), user, reader)
        self._sessions[session.token] = session
        return session

    def _client(self, **log_in: str) -> AsyncMongoClient[Document]:
        return AsyncMongoClient(self._settings.uri, **{**_CLIENT_OPTIONS, **self._settings.client_options, **log_in})


@dataclass(frozen=True, slots=True)
class Call:
    """One request of a logged-in user. Its methods raise `BadParameter` for missing or malformed parameters.

    Attributes:
        given: the parameters of the query, or the fields of the form.
        sampler: the daemons' metrics; empty if the user may not see them.
        settings: without targets if the user may not see the metrics.
    """

    session: Session
    given: Mapping[str, str]
    sampler: Sampler
    settings: Settings
    remote: str = ""

    def required(self, name: str) -> str:
        """Return a required parameter."""
        value = self.given.get(name, "")
        if not value:
            raise BadParameter(f"the parameter {name} is missing")
        return value

    def number(self, name: str) -> int | None:
        """Return a numeric parameter; None if it is missing."""
        text = self.given.get(name, "")
        if not text:
            return None
        if not text.isdecimal() or len(text) > _DIGITS_MAX:
            raise BadParameter(f"{name} must be a number")
        return int(text)

    def bound(self, name: str) -> dict[str, Any] | None:
        """Return a parameter with a chunk bound in Extended JSON; None if it is missing."""
        text = self.given.get(name, "")
        if not text:
            return None
        try:
            found = value_of(text)
        except ValueError as error:
            raise BadParameter(f"{name} must be a document in Extended JSON") from error
        if not isinstance(found, dict) or not found:
            raise BadParameter(f"{name} must be a document in Extended JSON")
        return found


_DIGITS_MAX: Final = 9


class BadParameter(ValueError):
    """A parameter is missing or not valid."""
