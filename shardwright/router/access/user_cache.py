"""Cache of the users who have logged in here, and of their privileges.

A cached user is valid for `seconds_max`, so changes through other routers take effect within that time. A task
refreshes the users in use before they expire. Any other expired user, or any user after a change through this router,
is refreshed by its next operation. If no config server can be read, cached users stay valid: an outage of the config
servers must not lock users out or delay their operations. A mongos does the same for users who are logged in, but
rejects log-ins.

Once a router has seen a user or a role, the localhost exception has ended (`AnybodySeen`). All processes of a router
share that knowledge, including processes that start later.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Final

import trio

from shardwright.config_servers.catalog_client import CatalogClient
from shardwright.daemon.backoff import Backoff
from shardwright.daemon.single_flight import SingleFlight
from shardwright.daemon.users import SYSTEM, UserName
from shardwright.router.access.authorized_user import SYSTEM_USER, Account, AuthorizedUser
from shardwright.wire.errors import CommandError
from shardwright.wire.logger import get_logger


class AnybodySeen:
    """Flag that the cluster has a user or a role; lasts until the router ends.

    Args:
        directory: a directory that the router's processes share; None for a router of one process.
    """

    def __init__(self, directory: Path | None = None) -> None:
        self._mark = None if directory is None else directory / "anybody-seen"
        self._is_true = False

    def note(self) -> None:
        """Set the flag."""
        if not self._is_true:
            self._is_true = True
            if self._mark is not None:
                self._mark.touch()

    @property
    def is_true(self) -> bool:
        """Whether any process of the router has set the flag."""
        if not self._is_true and self._mark is not None:
            self._is_true = self._mark.exists()
        return self._is_true


logger = get_logger("router.access")

USERS_MAX: Final = 1000
"""Maximum number of cached users; the user read longest ago is evicted."""

_GOOD_SECONDS: Final = 1.0
"""Time for which a connection uses a user without checking the cache. Users are refreshed this much earlier, and a
lower `seconds_max` takes effect after this time."""

_PROBE_SECONDS: Final = 10.0
"""Interval of the reads while no user is cached. They show whether the config servers respond."""

_OUTDATED_PATIENCE_SECONDS: Final = 2.0
"""Longest wait of an operation for the refresh of its outdated user."""


@dataclass(frozen=True, slots=True)
class _KeptUser:
    """The result of one read of a user.

    Attributes:
        generation: the generation of the cache when the read began.
        read_at: when the read began, by `trio.current_time`.
    """

    user: AuthorizedUser
    account: Account
    generation: int
    read_at: float


class UserCache:
    """The users by name. `run` must be running while the cache is used.

    Methods that return a user raise CommandError if the config servers cannot be read and the user is not cached.

    Args:
        seconds_max: returns the maximum age of a cached user while the config servers respond.
    """

    def __init__(
        self, catalog: CatalogClient, seconds_max: Callable[[], float], seen: AnybodySeen, nursery: trio.Nursery
    ) -> None:
        self._catalog = catalog
        self._seconds_max = seconds_max
        self._seen = seen
        self._kept: dict[UserName, _KeptUser] = {}
        self._generation = 0
        self._reads: SingleFlight[UserName, AuthorizedUser | None] = SingleFlight(nursery)
        self._account_reads: SingleFlight[UserName, Account] = SingleFlight(nursery)
        self._has_answer = False

    @property
    def may_log_in(self) -> bool:
        """Whether any user can log in: users are cached, or the latest read of the config servers succeeded."""
        return bool(self._kept) or self._has_answer

    async def run(self) -> None:
        """Refresh users before they expire, until cancelled."""
        backoff = Backoff(first_seconds=0.5, seconds_max=5.0)
        while True:
            if await self._refresh():
                backoff.reset()
                await trio.sleep(_GOOD_SECONDS if self._kept else min(_PROBE_SECONDS, self._seconds_max()))
            else:
                await backoff.pause()

    def fresh(self, name: UserName) -> AuthorizedUser | None:
        """Return a cached user, unless it is outdated."""
        if name == SYSTEM:
            return SYSTEM_USER
        kept = self._kept.get(name)
        if kept is None or self._is_outdated(kept, self._seconds_max()):
            return None
        kept.user.good_until = monotonic() + _GOOD_SECONDS
        return kept.user

    async def find(self, name: UserName) -> AuthorizedUser | None:
        """Return a user, refreshed if outdated; None if there is no such user."""
        user = self.fresh(name)
        if user is None:
            user = await self._newest(name, _OUTDATED_PATIENCE_SECONDS)
            if user is not None and self._catalog.is_silent:
                user.good_until = monotonic() + _GOOD_SECONDS  # spares the next operations the wait
        return user

    async def read(self, name: UserName) -> AuthorizedUser | None:
        """Read a user from the config servers; fall back to the cache if they do not respond in time."""
        return await self._newest(name)

    async def account_of(self, name: UserName) -> Account:
        """Read the credentials of a user from the config servers if they respond, so that a changed password counts."""
        read = partial(self._account_reads.run_after_now, name, partial(self._read_account, name))
        kept = self._kept.get(name)
        if kept is None:
            return await read()
        # After one slow answer, the old password must not stay valid for longer.
        return await self._catalog.attempt_briefly(read, even_if_silent=True) or kept.account

    async def was_there_ever_anybody(self) -> bool:
        """Whether this router has seen a user or a role before, or the cluster has one now."""
        if not self._seen.is_true and await self._is_there_anybody():
            self._seen.note()
        return self._seen.is_true

    def forget(self) -> None:
        """Expire all cached users because a user or a role was changed."""
        self._generation += 1
        for kept in self._kept.values():
            kept.user.good_until = 0.0

    async def _refresh(self) -> bool:
        """Refresh the users in use that will soon be outdated, one after the other.

        Returns:
            Whether the config servers responded to all reads.
        """
        if not self._kept:
            probe = partial(self._account_reads.run, SYSTEM, partial(self._read_account, SYSTEM))
            self._has_answer = await self._catalog.attempt_briefly(probe) is not None
            return self._has_answer
        seconds_max = self._seconds_max() - _GOOD_SECONDS
        used = [(name, kept) for name, kept in self._kept.items() if kept.user.good_until]
        for name in [name for name, kept in used if self._is_outdated(kept, seconds_max)]:
            try:
                await self._reads.run_after_now(name, partial(self._read, name))
            except CommandError as error:
                logger.warning("Could not read a user again", user=name.user, db=name.db, error=str(error))
                return False
            except (KeyError, TypeError, ValueError) as error:
                logger.warning("Could not decode a user", user=name.user, db=name.db, error=repr(error))
                self._drop(name)
        return True

    async def _newest(self, name: UserName, patience_seconds: float | None = None) -> AuthorizedUser | None:
        read: Callable[[], Awaitable[AuthorizedUser | None]]
        read = partial(self._reads.run_after_now, name, partial(self._read, name))
        if name not in self._kept:
            return await read()
        await self._catalog.attempt_briefly(read, patience_seconds)
        kept = self._kept.get(name)
        return None if kept is None else kept.user

    async def _read(self, name: UserName) -> AuthorizedUser | None:
        generation, began = self._generation, trio.current_time()
        documents = await self._documents(name, showPrivileges=True, showAuthenticationRestrictions=True)
        earlier = self._kept.get(name)
        self._drop(name)
        if not documents:
            return None
        user = AuthorizedUser.from_document(documents[0])
        if earlier is not None:
            user.keep_permit(earlier.user)
        self._kept[name] = _KeptUser(user, Account.from_documents(name, documents), generation, began)
        if len(self._kept) > USERS_MAX:
            self._drop(next(iter(self._kept)))
        return user

    async def _read_account(self, name: UserName) -> Account:
        return Account.from_documents(name, await self._documents(name))

    async def _documents(self, name: UserName, **shown: bool) -> list[dict[str, object]]:
        """Read the ``usersInfo`` of a user: one document with credentials, or none."""
        question = {"usersInfo": [name.to_document()], "showCredentials": True, **shown}
        try:
            documents: list[dict[str, object]] = (await self._catalog.ask(question))["users"]
        except CommandError:
            self._has_answer = False
            raise
        self._has_answer = True
        if documents:
            self._seen.note()
        return documents

    def _is_outdated(self, kept: _KeptUser, seconds_max: float) -> bool:
        return kept.generation != self._generation or trio.current_time() - kept.read_at >= seconds_max

    def _drop(self, name: UserName) -> None:
        kept = self._kept.pop(name, None)
        if kept is not None:
            kept.user.good_until = 0.0

    async def _is_there_anybody(self) -> bool:
        if (await self._catalog.ask({"usersInfo": {"forAllDBs": True}}))["users"]:
            return True
        return bool((await self._catalog.ask({"rolesInfo": 1}))["roles"])
