"""The users that have logged in here, as the config servers last described them.

A description is used for `seconds_max` and then read again, so that changes made elsewhere take effect within that
time; changes made here empty the cache. If the config servers cannot be read, the old description stays: users must not
be locked out by an election.
"""

from collections.abc import Callable
from time import monotonic
from typing import Final

from shardwright.config_servers.catalog_client import CatalogClient
from shardwright.daemon.user_names import SYSTEM, UserName
from shardwright.router.access.account import Account
from shardwright.router.access.anybody_seen import AnybodySeen
from shardwright.router.access.authorized_user import SYSTEM_USER, AuthorizedUser
from shardwright.wire.errors import CommandError
from shardwright.wire.logger import get_logger

logger = get_logger("router.access")

_GOOD_SECONDS: Final = 1.0
"""How long a description is used without a question to the cache; so long may a shorter `seconds_max` go unnoticed."""


class UserCache:
    """The users by name.

    Args:
        catalog: the config servers.
        seconds_max: returns how old a description may be.
        seen: notes when there is anybody.
    """

    def __init__(self, catalog: CatalogClient, seconds_max: Callable[[], float], seen: AnybodySeen) -> None:
        self._catalog = catalog
        self._seconds_max = seconds_max
        self._seen = seen
        self._users: dict[UserName, tuple[AuthorizedUser, float]] = {}
        self._generation = 0

    def fresh(self, name: UserName) -> AuthorizedUser | None:
        """What is known of a user, unless it is too old."""
        if name == SYSTEM:
            return SYSTEM_USER
        user, read_at = self._users.get(name, (None, 0.0))
        now, too_old_at = monotonic(), read_at + self._seconds_max()
        if user is None or now >= too_old_at:
            return None
        user.good_until = min(now + _GOOD_SECONDS, too_old_at)
        return user

    async def find(self, name: UserName) -> AuthorizedUser | None:
        """A user whose description is not too old; None if there is no such user.

        Raises:
            CommandError: the config servers cannot be read, and nothing is known of the user.
        """
        user = self.fresh(name)
        if user is not None:
            return user
        try:
            return await self.read(name)
        except CommandError as error:
            if name not in self._users:
                raise
            logger.warning("Could not read a user again", error=str(error))
            return self._users[name][0]

    async def read(self, name: UserName) -> AuthorizedUser | None:
        """As `find`, but always from the config servers.

        Raises:
            CommandError: they cannot be read.
        """
        generation, began = self._generation, monotonic()
        question = {
            "usersInfo": [name.to_document()],
            "showPrivileges": True,
            "showAuthenticationRestrictions": True,
        }
        documents = (await self._catalog.command(question))["users"]
        former, _ = self._users.pop(name, (None, 0.0))
        if former is not None:
            former.good_until = 0.0
        if not documents:
            return None
        self._seen.note()
        user = AuthorizedUser.from_document(documents[0])
        if generation == self._generation:  # else it may be as it was before a change
            self._users[name] = (user, began)
        return user

    async def account_of(self, name: UserName) -> Account:
        """How a user may log in; never from the cache, so that a changed password counts at once.

        Raises:
            CommandError: the config servers cannot be read.
        """
        question = {"usersInfo": [name.to_document()], "showCredentials": True}
        documents = (await self._catalog.command(question))["users"]
        if documents:
            self._seen.note()
        return Account.from_documents(name, documents)

    async def was_there_ever_anybody(self) -> bool:
        """Whether this router has seen a user or a role before, or the cluster has one now.

        Raises:
            CommandError: the config servers cannot be read.
        """
        if not self._seen.is_true and await self._is_there_anybody():
            self._seen.note()
        return self._seen.is_true

    async def _is_there_anybody(self) -> bool:
        if (await self._catalog.command({"usersInfo": {"forAllDBs": True}}))["users"]:
            return True
        return bool((await self._catalog.command({"rolesInfo": 1}))["roles"])

    def forget(self) -> None:
        """Read everything again when it is next needed, because a user or a role was changed."""
        self._generation += 1
        for user, _ in self._users.values():
            user.good_until = 0.0
        self._users.clear()
