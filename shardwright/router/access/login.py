"""The log-in state of one connection: its conversation in progress and its user. Pure.

As in MongoDB, a connection has one user. A new conversation ends an old one. After a failed one, the user stays logged
in.

`LogInCounts` are for the section ``security`` of serverStatus. As in MongoDB (``AuthCounter``), every attempt counts as
``authenticate``. An attempt inside a hello also counts as ``speculativeAuthenticate``, and an attempt of a cluster
member as ``clusterAuthenticate``.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from bson.int64 import Int64

from shardwright.daemon.users import UserName
from shardwright.router.access.authorized_user import NO_ADDRESSES, Addresses, AuthorizedUser
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.scram import ServerConversation

_ANY: Final = "authenticate"
_SPECULATIVE: Final = "speculativeAuthenticate"
_OF_CLUSTER: Final = "clusterAuthenticate"


@dataclass(slots=True)
class _Count:
    received: int = 0
    successful: int = 0


_Counts = dict[str, _Count]
"""The counts of one mechanism, by kind."""


class LogInAttempt:
    """A started log-in, counted at its creation."""

    __slots__ = ("_counts", "_kinds")

    def __init__(self, counts: _Counts, *, is_speculative: bool) -> None:
        self._counts = counts
        self._kinds: list[str] = []
        self._count_as(_ANY)
        if is_speculative:
            self._count_as(_SPECULATIVE)

    def is_of_cluster(self) -> None:
        """Count the attempt as one by a cluster member."""
        self._count_as(_OF_CLUSTER)

    def succeed(self) -> None:
        """Count the attempt as successful."""
        for kind in self._kinds:
            self._counts[kind].successful += 1

    def _count_as(self, kind: str) -> None:
        self._kinds.append(kind)
        self._counts[kind].received += 1


class LogInCounts:
    """The log-in counts of this process.

    Attributes:
        mechanisms_asked: the number of hellos that requested the mechanisms of a user.
    """

    def __init__(self, mechanisms: Iterable[str]) -> None:
        self.mechanisms_asked = 0
        self._by_mechanism = {name: _no_counts() for name in sorted(mechanisms)}

    def begin(self, mechanism: str, *, is_speculative: bool) -> LogInAttempt:
        """Count an attempt. An attempt with an unknown mechanism is not counted."""
        return LogInAttempt(self._by_mechanism.get(mechanism, _no_counts()), is_speculative=is_speculative)

    def document(self) -> dict[str, Any]:
        """Return the subsection ``authentication``."""
        return {
            "saslSupportedMechsReceived": Int64(self.mechanisms_asked),
            "mechanisms": {
                name: {
                    kind: {"received": Int64(count.received), "successful": Int64(count.successful)}
                    for kind, count in counts.items()
                }
                for name, counts in self._by_mechanism.items()
            },
        }


def _no_counts() -> _Counts:
    return {kind: _Count() for kind in (_SPECULATIVE, _OF_CLUSTER, _ANY)}


CONVERSATION_ID = 1


@dataclass(slots=True)
class Conversation:
    """A SCRAM log-in in progress.

    Attributes:
        user_id: distinguishes that user from a later one of the same name.
        steps: verifies the proof; None if the proof is verified and only the client's confirmation is missing.
        skips_empty_exchange: whether the client need not confirm.
    """

    user: UserName
    user_id: bytes
    steps: ServerConversation | None
    skips_empty_exchange: bool
    attempt: LogInAttempt


class LogInListener(Protocol):
    """Callback for log-ins and log-outs."""

    def __call__(self, *, is_logged_in: bool) -> None:
        """Handle a log-in or a log-out."""


@dataclass(slots=True)
class Login:
    """The log-in state of a connection.

    Attributes:
        changed: called at each log-in and log-out; None without a listener.
        user_id: as in `Conversation`.
        addresses: the client's and the server's address of the connection.
        admitted: the user, with the privileges of that moment, as which the last request was admitted.
        attempt: the user and mechanism of the last attempt to log in, for the audit log.
        previous: the user that logged out last, for the audit log.
    """

    changed: LogInListener | None = None
    user: UserName | None = None
    user_id: bytes = b""
    addresses: Addresses = NO_ADDRESSES
    conversation: Conversation | None = None
    admitted: AuthorizedUser | None = None
    attempt: tuple[UserName, str] | None = None
    previous: UserName | None = None

    def complete(self, user: UserName, user_id: bytes, addresses: Addresses) -> None:
        """Log in a user who has authenticated.

        Args:
            user_id: as in `Conversation`.

        Raises:
            CommandError: 5626701 or 5626702, another user is logged in.
        """
        present = self.user
        if present is not None and present != user:
            shown = present.full_name
            if present.db == user.db:
                raise CommandError(
                    5626702,
                    f"Client has attempted to authenticate on multiple databases.Already authenticated as: {shown}",
                )
            raise CommandError(
                5626701,
                f"Each client connection may only be authenticated once. Previously authenticated as: {shown}",
            )
        self.user, self.user_id, self.addresses = user, user_id, addresses
        self.admitted = None
        if self.changed is not None:
            self.changed(is_logged_in=True)

    def end(self) -> None:
        """Log the user out."""
        self.previous, self.user, self.admitted = self.user, None, None
        if self.changed is not None:
            self.changed(is_logged_in=False)

    def take_conversation(self) -> Conversation:
        """Remove and return the conversation in progress; the caller puts it back to continue it.

        Raises:
            CommandError: ProtocolError, there is none.
        """
        conversation, self.conversation = self.conversation, None
        if conversation is None:
            raise CommandError(ErrorCode.ProtocolError, "No SASL session state found")
        return conversation


def authentication_failed() -> CommandError:
    """Return the error of every failed log-in. It does not reveal the reason."""
    return CommandError(ErrorCode.AuthenticationFailed, "Authentication failed.")
