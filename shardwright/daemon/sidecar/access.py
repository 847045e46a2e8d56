"""Who may send what to a sidecar whose mongod has access control.

Clients log in at the mongod, through the sidecar, and the mongod decides what they may do. Two things it cannot decide:
requests that only the cluster itself may send, and commands that the daemon answers itself. The mongod is asked who a
client is after each exchange of a log-in; no address, socket or field of a request says so.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from shardwright.daemon.privileges import CLUSTER, Privileges
from shardwright.daemon.sidecar.internal_requests import is_internal
from shardwright.daemon.sidecar.upstream import Upstream
from shardwright.daemon.user_names import UserName, with_owner_of_session
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.hello import HELLO_NAMES
from shardwright.wire.request import Request

_LOG_INS: Final = frozenset({"authenticate", "logout", "saslContinue", "saslStart"})
_X509: Final = "MONGODB-X509"
_SPECULATIVE: Final = b"speculativeAuthenticate"


class SidecarAccess:
    """Checks the requests of clients before the daemon or its mongod acts on them.

    Args:
        own_commands: the commands that the daemon answers itself and users may run, each with the action that they need
            on the cluster.
        answers_itself: whether the daemon answers a command itself.
        text_of: a request as errors show it.
    """

    def __init__(
        self,
        own_commands: Mapping[str, str],
        answers_itself: Callable[[str], bool],
        text_of: Callable[[Request], str],
    ) -> None:
        self._own_commands = own_commands
        self._answers_itself = answers_itself
        self._text_of = text_of

    async def admit(self, upstream: Upstream, request: Request) -> Request:
        """Check a request of a client who is not a part of the cluster; returns what is to be executed.

        Raises:
            CommandError: Unauthorized.
            BackendError: the mongod is gone.
        """
        user = upstream.user
        if _uses_certificate(request):
            raise CommandError(
                ErrorCode.AuthenticationFailed, "TLS ends at this daemon: log in with a certificate at a router"
            )
        if is_internal(request):
            raise self._refusal(request, user)
        if self._answers_itself(request.name):
            if user is None:
                raise self._refusal(request, user)
            await self._check_own_command(upstream, request, user)
        return request if user is None else with_owner_of_session(request, user)

    async def learn_user(self, upstream: Upstream) -> None:
        """Ask the mongod who is logged in on a client's connection.

        Raises:
            BackendError: the mongod is gone.
            CommandError: the mongod refuses to answer.
        """
        info = await _status(upstream)
        users = [UserName(each["user"], each["db"]) for each in info["authenticatedUsers"]]
        upstream.note_user(users[0] if users else None)

    def is_internal(self, upstream: Upstream) -> bool:
        """Whether a client is a part of the cluster."""
        return upstream.user is not None and upstream.user.is_internal

    async def _check_own_command(self, upstream: Upstream, request: Request, user: UserName) -> None:
        action = self._own_commands.get(request.name)
        if action is not None:
            info = await _status(upstream, showPrivileges=True)
            if Privileges.from_documents(info["authenticatedUserPrivileges"]).allow(action, CLUSTER):
                return
        raise self._refusal(request, user)

    def _refusal(self, request: Request, user: UserName | None) -> CommandError:
        if user is None:
            return CommandError(ErrorCode.Unauthorized, f"command {request.name} requires authentication")
        return CommandError(
            ErrorCode.Unauthorized, f"not authorized on {request.db} to execute command {self._text_of(request)}"
        )


def may_log_in(request: Request) -> bool:
    """Whether a request may change who is logged in on its connection."""
    return request.name in _LOG_INS or (request.name in HELLO_NAMES and _SPECULATIVE in request.fields)


def _uses_certificate(request: Request) -> bool:
    """Whether a client wants to log in with a certificate. The mongod would take this daemon's for the client's."""
    if request.name == "authenticate" or (request.fields.get(b"mechanism") and request.get(b"mechanism") == _X509):
        return True
    if request.name not in HELLO_NAMES or _SPECULATIVE not in request.fields:
        return False
    speculative = request.get(_SPECULATIVE)
    return isinstance(speculative, dict) and ("authenticate" in speculative or speculative.get("mechanism") == _X509)


async def _status(upstream: Upstream, **arguments: bool) -> dict[str, Any]:
    reply = await upstream.command("admin", {"connectionStatus": 1, **arguments})
    info: dict[str, Any] = reply["authInfo"]
    return info
