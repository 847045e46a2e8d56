"""The errors that daemons raise and answer, in MongoDB's own vocabulary of codes.

Four families, kept apart because they are handled in different places:

* `CommandError` becomes an ``ok: 0`` reply to the sender of the command.
* `RemoteProtocolError` is about bytes that no peer should send; it closes the connection they came on, and no other.
* `LocalProtocolError` is our own misuse of a protocol object: a bug.
* `BackendError` is a remote host that could not be reached or did not answer; its caller decides what that means.
"""

from collections.abc import Mapping
from typing import Any, Final

from shardwright.wire.error_codes import code_name

RETRYABLE_WRITE_ERROR: Final = "RetryableWriteError"
"""The label of an error after which a driver may send a retryable write again."""


class CommandError(Exception):
    """A command that failed with a MongoDB error code.

    Args:
        code: a number of `wire.error_codes.ErrorCode`, or one of the bare numbers MongoDB uses for single assertions.
        message: what a person reads in ``errmsg``.
        labels: ``errorLabels``, for example ``TransientTransactionError``.
        extra: the fields that this code adds to the top level of its reply, for example ``vWanted`` of StaleConfig.
    """

    def __init__(
        self, code: int, message: str, *, labels: tuple[str, ...] = (), extra: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        self.code = int(code)
        self.message = message
        self.labels = labels
        self.extra: Mapping[str, Any] = extra or {}

    @property
    def code_name(self) -> str:
        """``codeName`` of the reply, ``Location<code>`` for a number without a name."""
        return code_name(self.code)

    def reply(self) -> dict[str, Any]:
        """The body of the ``ok: 0`` reply, in mongod's order of fields."""
        document: dict[str, Any] = {
            "ok": 0.0,
            "errmsg": self.message,
            "code": self.code,
            "codeName": self.code_name,
            **self.extra,
        }
        if self.labels:
            document["errorLabels"] = list(self.labels)
        return document

    @classmethod
    def from_reply(cls, reply: Mapping[str, Any]) -> "CommandError":
        """The error in an ``ok: 0`` reply."""
        extra = {
            key: value for key, value in reply.items() if key not in _COMMON_REPLY_FIELDS and not key.startswith("$")
        }
        return cls(
            reply.get("code", 8),
            reply.get("errmsg", "unknown error"),
            labels=tuple(reply.get("errorLabels", ())),
            extra=extra,
        )

    def __str__(self) -> str:
        return f"{self.code_name} ({self.code}): {self.message}"


_COMMON_REPLY_FIELDS = frozenset(
    {"ok", "errmsg", "code", "codeName", "errorLabels", "operationTime", "lastCommittedOpTime"}
)


class RemoteProtocolError(Exception):
    """Bytes from a peer that break the wire protocol; the connection they came on has to be closed."""


class LocalProtocolError(Exception):
    """A protocol object was used in a way its state does not allow."""


class BackendError(Exception):
    """A remote host failed us below the level of commands.

    Attributes:
        address: ``host:port`` or the path of a UNIX socket.
        sent: whether the request may have been executed there (it was at least partly sent).
    """

    def __init__(self, address: str, message: str, *, sent: bool) -> None:
        super().__init__(f"{address}: {message}")
        self.address = address
        self.sent = sent


class ConnectFailedError(BackendError):
    """The host refused a connection, or none came about in time."""


class ConnectionClosedError(BackendError):
    """The host closed a connection on which an answer was awaited."""
