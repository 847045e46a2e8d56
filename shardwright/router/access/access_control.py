"""Authorization of commands: whether a client may run one, and as which user.

With access control on, every request passes here first. The checks are in mongos's order: database, log-in, privileges.
For some operations on their own account (`is_about_oneself`), users do not need the privileges that other accounts
require.

**The localhost exception.** Until a cluster has a user, a client on the same machine may create the first one. Only a
connection through the loopback interface counts. UNIX sockets do not, because they may carry other machines' clients.
Only one client at a time may create the first user.
"""

from collections.abc import Callable, Iterable, Mapping
from ipaddress import ip_address
from time import monotonic
from typing import Any, Final

import trio

from shardwright.config_servers.catalog_client import CatalogClient
from shardwright.daemon.users import CLUSTER, Privileges, Resource, UserName, with_owner_of_session
from shardwright.router.access.authorized_user import SYSTEM_USER, AuthorizedUser
from shardwright.router.access.command_needs import SAME_FOR_COLLECTION, TABLE
from shardwright.router.access.internal_fields import has_internal_fields, refusal_of_internal_fields
from shardwright.router.access.login import Login, LogInCounts
from shardwright.router.access.mechanisms import ScramLogin
from shardwright.router.access.needs import Need, with_own_operations, with_own_sessions
from shardwright.router.access.user_cache import AnybodySeen, UserCache
from shardwright.sharding.bson_text import command_text
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.logger import get_logger
from shardwright.wire.rawbson import is_string
from shardwright.wire.request import Request
from shardwright.wire.scram import MECHANISMS
from shardwright.wire.transport.client_connection import ClientConnection
from shardwright.wire.transport.cluster_auth import WITH_CERTIFICATE, ClusterAuth
from shardwright.wire.transport.reactor import in_own_task, may_run_in_reactor

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

_ADMIN: Final = "admin"
_EXTERNAL: Final = "$external"

_CHANGES: Final[Mapping[bytes, str]] = {b"pwd": "changeOwnPassword", b"customData": "changeOwnCustomData"}
_OTHER_FIELDS: Final = frozenset({b"roles", b"mechanisms", b"authenticationRestrictions"})


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
                if not _is_granted(request):
                    raise not_authorized(request)
                return request
        login.admitted = user
        client.permit = None if user is SYSTEM_USER else user.permit
        if user is SYSTEM_USER:
            return with_owner_of_session(request, user.name)
        if not user.is_remembered(name, request) and not _may_run(user, name, request):
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
            return _is_about_oneself(user, name, request)
        if name in SAME_FOR_COLLECTION:
            user.remember(name, request)
        return True
    except CommandError as error:
        if error.code == ErrorCode.Unauthorized:
            return False
        raise


class LocalhostException:
    """Decides whether the exception is in force. It ends for good once the router has seen a user or a role."""

    def __init__(self, users: UserCache) -> None:
        self._users = users
        self._creating: tuple[ClientConnection, object] | None = None

    async def is_in_force(self, client: ClientConnection, request: Request) -> bool:
        """Whether a client without a log-in may create the first user, and so has every privilege.

        While one client creates the first user, the exception applies to no other client.
        """
        if self._is_being_used() or not _is_from_this_machine(client.peer):
            return False
        if request.name == "createUser" and _is_granted(request):
            self._creating = client, client.state  # before the read, so that no other client passes during it
        return not await self._users.was_there_ever_anybody()

    def _is_being_used(self) -> bool:
        """Whether the operation that was admitted last is still running."""
        if self._creating is None:
            return False
        client, operation = self._creating
        return client.state is operation


def _is_granted(request: Request) -> bool:
    """Whether the exception covers a request: ``addShard``, or ``createUser`` in admin or $external for admin roles."""
    if request.name == "addShard":
        return True
    if request.name != "createUser" or request.db not in (_ADMIN, _EXTERNAL):
        return False
    roles = request.get(b"roles")
    given = roles if isinstance(roles, list) else []
    if request.db == _EXTERNAL:
        return all(_db_of(role, _EXTERNAL) == _ADMIN for role in given)
    return b"authenticationRestrictions" not in request.fields and all(_db_of(role, _ADMIN) == _ADMIN for role in given)


def _db_of(role: Any, db: str) -> str:  # noqa: ANN401 - whatever a client sent
    return str(role.get("db", db)) if isinstance(role, Mapping) else db


def _is_from_this_machine(peer: str) -> bool:
    host = peer.rpartition(":")[0]
    try:
        return ip_address(host).is_loopback
    except ValueError:  # a UNIX socket
        return False


def _is_about_oneself(user: AuthorizedUser, name: str, request: Request) -> bool:
    """Whether a user may run a command because it concerns only that user.

    Args:
        name: the command, without aliases.
    """
    if name == "usersInfo":
        return all(_named(each, request.db, "user") == _pair(user.name) for each in _asked(request))
    if name == "rolesInfo":
        return all(_named(each, request.db, "role") in user.roles for each in _asked(request))
    if name == "updateUser":
        return _named(request.get(b"updateUser"), request.db, "user") == _pair(user.name) and _may_change(user, request)
    return False


def _may_change(user: AuthorizedUser, request: Request) -> bool:
    """Whether a user may make the changes that an ``updateUser`` on that user contains."""
    actions = [action for name, action in _CHANGES.items() if name in request.fields]
    if not actions or not _OTHER_FIELDS.isdisjoint(request.fields):
        return False
    return all(Need(action, Resource(request.db)).is_met(user.privileges) for action in actions)


def _asked(request: Request) -> Iterable[Any]:
    """Return the users or roles that the command names. A request for all of them yields one value without a name."""
    asked = request.get(request.name.encode())
    return asked if isinstance(asked, list) and asked else [asked]


def _named(value: Any, db: str, field: str) -> tuple[str, str]:  # noqa: ANN401 - whatever a client sent
    """Return the name and the database of a user or a role; empty strings if the value names neither."""
    if is_string(value):
        return value, db
    if isinstance(value, Mapping) and value.keys() == {field, "db"}:
        return str(value[field]), str(value["db"])
    return "", ""


def _pair(name: UserName) -> tuple[str, str]:
    return name.user, name.db
