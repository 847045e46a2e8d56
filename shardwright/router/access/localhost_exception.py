"""The first user of a cluster: until there is one, a client on the same machine may create it without a log-in.

Only a connection through the loopback interface counts. UNIX sockets do not, because they may carry other machines'
clients. Only one client at a time may create the first user.
"""

from collections.abc import Mapping
from ipaddress import ip_address
from typing import Any, Final

from shardwright.router.access.user_cache import UserCache
from shardwright.wire.request import Request
from shardwright.wire.transport.client_connection import ClientConnection

_ADMIN: Final = "admin"
_EXTERNAL: Final = "$external"


class LocalhostException:
    """Ends for good with the first user or role that the router sees, in whichever way.

    Args:
        users: of the cluster.
    """

    def __init__(self, users: UserCache) -> None:
        self._users = users
        self._creating: tuple[ClientConnection, object] | None = None

    async def is_in_force(self, client: ClientConnection, request: Request) -> bool:
        """Whether a client who has not logged in may create the first user, and so has any privilege.

        While it creates the first user, the exception applies to no other client.

        Raises:
            CommandError: the config servers cannot be read.
        """
        if self._is_being_used() or not _is_from_this_machine(client.peer):
            return False
        if request.name == "createUser" and is_granted(request):
            self._creating = client, client.state  # before the question: another answer to it would be too old
        return not await self._users.was_there_ever_anybody()

    def _is_being_used(self) -> bool:
        """Whether the operation that was let in last still runs."""
        if self._creating is None:
            return False
        client, operation = self._creating
        return client.state is operation


def is_granted(request: Request) -> bool:
    """Whether the exception is for it: ``createUser`` in admin or $external, with roles of admin; ``addShard``."""
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
