"""The log-in of one connection: a conversation that is going on, and who has logged in. Pure.

As in MongoDB a connection has one user. A new conversation ends an old one, and a failed one leaves the user logged in.
"""

from dataclasses import dataclass
from typing import Protocol

from shardwright.daemon.user_names import UserName
from shardwright.router.access.authorized_user import AuthorizedUser
from shardwright.router.access.log_in_counts import LogInAttempt
from shardwright.router.access.restrictions import NO_ADDRESSES, Addresses
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.scram.server import ServerConversation

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
        changed: called at each log-in and log-out; None if nobody listens.
        user: who has logged in.
        user_id: as in `Conversation`.
        addresses: from where and to which the user has connected.
        conversation: see above.
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
            addresses: see above.

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
