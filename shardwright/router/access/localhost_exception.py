"""The localhost exception: until a cluster has a user, a client on the same machine may create the first one.

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
        if request.name == "createUser" and is_granted(request):
            self._creating = client, client.state  # before the read, so that no other client passes during it
        return not await self._users.was_there_ever_anybody()

    def _is_being_used(self) -> bool:
        """Whether the operation that was admitted last is still running."""
        if self._creating is None:
            return False
        client, operation = self._creating
        return client.state is operation


def is_granted(request: Request) -> bool:
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
