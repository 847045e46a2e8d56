"""Authorization of commands: whether a client may run one, and as which user.

With access control on, every request passes here first. The checks are in mongos's order: database, log-in, privileges.
"""

from collections.abc import Callable
from time import monotonic
from typing import Final

import trio

from shardwright.config_servers.catalog_client import CatalogClient
from shardwright.daemon.privileges import CLUSTER, Privileges
from shardwright.daemon.user_names import UserName, with_owner_of_session
from shardwright.router.access.authorized_user import (
    SYSTEM_USER,
    AuthorizedUser,
    has_internal_fields,
    refusal_of_internal_fields,
)
from shardwright.router.access.command_needs import SAME_FOR_COLLECTION, TABLE
from shardwright.router.access.localhost_exception import LocalhostException, is_granted
from shardwright.router.access.login import Login, LogInCounts
from shardwright.router.access.needs import Need, with_own_operations, with_own_sessions
from shardwright.router.access.own_account import is_about_oneself
from shardwright.router.access.scram_login import ScramLogin
from shardwright.router.access.user_cache import AnybodySeen, UserCache
from shardwright.sharding.bson_text import command_text
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.logger import get_logger
from shardwright.wire.request import Request
from shardwright.wire.scram.keys import MECHANISMS
from shardwright.wire.transport.client_connection import ClientConnection
from shardwright.wire.transport.cluster_auth import WITH_CERTIFICATE, ClusterAuth
from shardwright.wire.transport.request_loop import in_own_task, may_run_in_reactor

logger = get_logger("router.access")

WITHOUT_LOG_IN: Final = frozenset(
    {
        *("_isSelf", "authenticate", "buildInfo", "connectionStatus", "getLastError", "getnonce", "hello", "isMaster"),
        *("isdbgrid", "listCommands", "ping", "saslContinue", "saslStart", "whatsmyuri"),
    }
)
"""Commands that clients may run before they log in: MongoDB's list, without test commands."""

_ADVANCES_CLOCK: Final = Need("advanceClusterTime", CLUSTER)
"""No built-in role grants this to users."""


class AccessControl:
    """Authorizes the requests of all clients.

    The asynchronous methods raise CommandError if the config servers cannot be read.

    Args:
        auth: how the members of the cluster authenticate to each other.
    """

    def __init__(
        self,
        catalog: CatalogClient,
        auth: ClusterAuth,
        cache_seconds: Callable[[], float],
        seen: AnybodySeen,
        nursery: trio.Nursery,
    ) -> None:
        self.users = UserCache(catalog, cache_seconds, seen, nursery)
        self.seen = seen
        self.counts = LogInCounts((WITH_CERTIFICATE, *MECHANISMS))
        self.scram = ScramLogin(self.users, auth, self.counts)
        self._localhost = LocalhostException(self.users)

    @may_run_in_reactor
    async def admit(
        self, client: ClientConnection, name: str, request: Request, *, admin_only: bool, may_write: bool
    ) -> Request:
        """Authorize a request and return it as it is to be executed, with its user as the owner of its session.

        Args:
            name: the command, without aliases.
            admin_only: whether the command runs on the admin database alone.
            may_write: whether shards need to know if the user bypasses the user write block.

        Raises:
            CommandError: Unauthorized, or the config servers cannot be read.
        """
        login: Login = client.login
        if admin_only and request.db != "admin":
            raise CommandError(ErrorCode.Unauthorized, f"{request.name} may only be run against the admin database.")
        if name in WITHOUT_LOG_IN:
            if has_internal_fields(request) and not (login.user is not None and login.user.is_internal):
                raise refusal_of_internal_fields(request) or not_authorized(request)
            return request if login.user is None else with_owner_of_session(request, login.user)
        user = login.admitted
        if user is None or monotonic() >= user.good_until:
            user = None if login.user is None else self.users.fresh(login.user)
        if user is None or user is not login.admitted:  # not cached yet, or read again since
            await in_own_task()
            user = await self.user_of(login)
            if user is None:
                if not await self._localhost.is_in_force(client, request):
                    raise CommandError(ErrorCode.Unauthorized, f"command {request.name} requires authentication")
                if not is_granted(request):
                    raise not_authorized(request)
                return request
        login.admitted = user
        client.permit = None if user is SYSTEM_USER else user.permit
        if user is SYSTEM_USER:
            return with_owner_of_session(request, user.name)
        if not user.may(name, request) and not _may_run(user, name, request):
            raise not_authorized(request)
        if has_internal_fields(request):
            raise refusal_of_internal_fields(request) or not_authorized(request)
        if name == "aggregate":
            request = with_own_operations(with_own_sessions(request, user.name), user.name)
        return with_owner_of_session(request, user.name, user.write_block_element if may_write else b"")

    def allows(self, client: ClientConnection, need: Need) -> bool:
        """Whether the privileges of an admitted client include an action."""
        return need.is_met(self.privileges_of(client))

    def privileges_of(self, client: ClientConnection) -> Privileges:
        """Return the privileges of an admitted client."""
        user: AuthorizedUser | None = client.login.admitted
        return Privileges({}) if user is None else user.privileges

    async def may_advance_clock(self, client: ClientConnection) -> bool:
        """Whether cluster times of a client need no signature (MongoDB: ``isAuthorizedToAdvanceClock``)."""
        user = await self.user_of(client.login)
        return user is not None and (user.name.is_internal or _ADVANCES_CLOCK.is_met(user.privileges))

    def may_still_run(self, client: ClientConnection, request: Request) -> bool:
        """Whether the user of a client may still run a request that was admitted earlier.

        Args:
            client: a client that was admitted just now.
            request: the request, with or without an owner in its session id.
        """
        user: AuthorizedUser | None = client.login.admitted
        return user is not None and _may_run(user, request.name, request)

    async def may_be_run_for(self, name: UserName, request: Request) -> bool:
        """Do the same as `may_still_run` for a user who is logged in at another process of this router."""
        user = await self.users.find(name)
        return user is not None and _may_run(user, request.name, request)

    async def user_of(self, login: Login) -> AuthorizedUser | None:
        """Return the user that is logged in on a connection, if any.

        A user who was dropped is logged out, even if there is a new user of that name. A user whose authentication
        restrictions no longer allow the addresses of the connection is logged out for good.
        """
        if login.user is None:
            return None
        user = await self.users.find(login.user)
        if user is None or user.user_id != login.user_id:
            reason = "the user was dropped"
        elif not user.restrictions.are_met(login.addresses):
            reason = "authentication restrictions are not met any more"
        else:
            return user
        logger.info("Logged a user out", user=login.user.user, db=login.user.db, error=reason)
        login.end()
        login.previous = None  # the audit log names only users who logged out themselves
        return None


def not_authorized(request: Request) -> CommandError:
    """Return the error for a command that the user is not authorized to run."""
    return CommandError(
        ErrorCode.Unauthorized, f"not authorized on {request.db} to execute command {command_text(request)}"
    )


def _may_run(user: AuthorizedUser, name: str, request: Request) -> bool:
    if user.name.is_internal:
        return True
    row = TABLE.get(name)
    if row is None:
        return False
    try:
        if not all(need.is_met(user.privileges) for need in row(request)):
            return is_about_oneself(user, name, request)
        if name in SAME_FOR_COLLECTION:
            user.remember(name, request)
        return True
    except CommandError as error:
        if error.code == ErrorCode.Unauthorized:
            return False
        raise
