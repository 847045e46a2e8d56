"""The log-in of one connection: a conversation that is going on, and who has logged in. Pure.

As in MongoDB a connection has one user. A new conversation ends an old one, and a failed one leaves the user logged
in.

`LogInCounts` are for the section ``security`` of serverStatus. As in MongoDB (``AuthCounter``) an attempt counts as
``authenticate`` in any case; one that a client has begun within its hello also counts as
``speculativeAuthenticate``, and one of a part of the cluster as ``clusterAuthenticate``.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from bson.int64 import Int64

from shardwright.daemon.user_names import UserName
from shardwright.router.access.authorized_user import NO_ADDRESSES, Addresses, AuthorizedUser
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.scram.server import ServerConversation

_ANY: Final = "authenticate"
_SPECULATIVE: Final = "speculativeAuthenticate"
_OF_CLUSTER: Final = "clusterAuthenticate"


@dataclass(slots=True)
class _Count:
    received: int = 0
    successful: int = 0


_Counts = dict[str, _Count]
"""Of one mechanism, by kind."""


class LogInAttempt:
    """A log-in that has begun, and has been counted.

    Args:
        counts: the counts of its mechanism.
        is_speculative: it was begun within a hello.
    """

    __slots__ = ("_counts", "_kinds")

    def __init__(self, counts: _Counts, *, is_speculative: bool) -> None:
        self._counts = counts
        self._kinds: list[str] = []
        self._count_as(_ANY)
        if is_speculative:
            self._count_as(_SPECULATIVE)

    def is_of_cluster(self) -> None:
        """It has turned out to be one of a part of the cluster."""
        self._count_as(_OF_CLUSTER)

    def succeed(self) -> None:
        """It has succeeded."""
        for kind in self._kinds:
            self._counts[kind].successful += 1

    def _count_as(self, kind: str) -> None:
        self._kinds.append(kind)
        self._counts[kind].received += 1


class LogInCounts:
    """The counts of this process.

    Args:
        mechanisms: by which clients can log in.

    Attributes:
        mechanisms_asked: how many hellos have asked for the mechanisms of a user.
    """

    def __init__(self, mechanisms: Iterable[str]) -> None:
        self.mechanisms_asked = 0
        self._by_mechanism = {name: _no_counts() for name in sorted(mechanisms)}

    def begin(self, mechanism: str, *, is_speculative: bool) -> LogInAttempt:
        """Count an attempt; one by a mechanism that there is not counts nowhere."""
        return LogInAttempt(self._by_mechanism.get(mechanism, _no_counts()), is_speculative=is_speculative)

    def document(self) -> dict[str, Any]:
        """The subsection ``authentication``."""
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
    """A log-in that is going on.

    Attributes:
        user: who logs in.
        user_id: tells that user from a later one of the same name.
        steps: verifies the proof; None once it was verified, if the client still has to confirm.
        skips_empty_exchange: the client need not confirm.
        attempt: counts it.
    """

    user: UserName
    user_id: bytes
    steps: ServerConversation | None
    skips_empty_exchange: bool
    attempt: LogInAttempt


class LogInListener(Protocol):
    """Is told that somebody has logged in or out."""

    def __call__(self, *, is_logged_in: bool) -> None:
        """It has happened."""


@dataclass(slots=True)
class Login:
    """The state of a connection.

    Attributes:
        changed: called at each authentication and logout; None without a listener.
        user: who has logged in.
        user_id: as in `Conversation`.
        addresses: the client's and the server's address of the connection.
        admitted: as whom the last request since the log-in was admitted, with the privileges of that moment.
        attempt: who has begun to log in, and by which mechanism, for the audit log.
        previous: who has logged out, for the audit log.
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
        """A user has proven to know the password.

        Args:
            user: the name.
            user_id: as in `Conversation`.
            addresses: the client's and the server's address.

        Raises:
            CommandError: 5626701 or 5626702, somebody else is logged in.
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
        """The user has logged out, or is no longer one."""
        self.previous, self.user, self.admitted = self.user, None, None
        if self.changed is not None:
            self.changed(is_logged_in=False)

    def take_conversation(self) -> Conversation:
        """The conversation, which ends unless it is put back.

        Raises:
            CommandError: ProtocolError, there is none.
        """
        conversation, self.conversation = self.conversation, None
        if conversation is None:
            raise CommandError(ErrorCode.ProtocolError, "No SASL session state found")
        return conversation


def authentication_failed() -> CommandError:
    """The error of every log-in that fails, whatever the reason is."""
    return CommandError(ErrorCode.AuthenticationFailed, "Authentication failed.")
