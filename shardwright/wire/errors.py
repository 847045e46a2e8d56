"""Errors that daemons raise and return, and the messages of MongoDB's command parser (IDL), with MongoDB's codes.

Four families, each handled in a different place:

* `CommandError` becomes an ``ok: 0`` reply to the sender of the command.
* `RemoteProtocolError` closes the connection of a peer that violated the protocol. Its subclass `MalformedRequestError`
  is answered instead.
* `LocalProtocolError` is a bug: our own misuse of a protocol object.
* `BackendError` means that a remote host was unreachable or did not answer; the caller decides how to react.
"""

from collections.abc import Mapping
from typing import Any, Final

from shardwright.wire.error_codes import ErrorCode, code_name
from shardwright.wire.rawbson import type_name

RETRYABLE_WRITE_ERROR: Final = "RetryableWriteError"
"""Label of errors after which a driver may retry a retryable write."""

TRANSIENT_TRANSACTION_ERROR: Final = "TransientTransactionError"
"""Label of errors after which a client may run its whole transaction again."""


class CommandError(Exception):
    """A command that failed with a MongoDB error code.

    Args:
        code: a number of `wire.error_codes.ErrorCode`, or a number that MongoDB uses for a single assertion.
        labels: ``errorLabels``, for example ``TransientTransactionError``.
        extra: fields that this code adds to the top level of its reply, for example ``vWanted`` of StaleConfig.
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
        """``codeName`` of the reply; ``Location<code>`` for a number without a name."""
        return code_name(self.code)

    def reply(self) -> dict[str, Any]:
        """Build the body of the ``ok: 0`` reply, in mongod's order of fields."""
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
        """Read the error of an ``ok: 0`` reply."""
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


def check_writes(reply: Mapping[str, Any]) -> None:
    """Raise the first of the ``writeErrors`` of an ``ok: 1`` reply, otherwise its ``writeConcernError``."""
    for failure in reply.get("writeErrors", ()):
        raise CommandError.from_reply(failure)
    if "writeConcernError" in reply:
        raise CommandError.from_reply(reply["writeConcernError"])


class RemoteProtocolError(Exception):
    """Bytes of a peer that violate the wire protocol. Except for the subclass, its connection must be closed."""


class MalformedRequestError(RemoteProtocolError):
    """A complete message with malformed contents.

    A request with it is answered with ``error``, and its connection stays open. In a reply it counts as the base class.
    """

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.error = CommandError(code, message)


class LocalProtocolError(Exception):
    """Use of a protocol object that its state does not allow."""


class BackendError(Exception):
    """Failed communication with a remote host, below the level of commands.

    Attributes:
        sent: whether at least a part of the request was sent, so that it may have been executed.
        is_silent: whether the host did not react at all, as when it is frozen or unplugged. Its other connections then
            stay open too.
    """

    def __init__(self, address: str, message: str, *, sent: bool, is_silent: bool = False) -> None:
        super().__init__(f"{address}: {message}")
        self.address = address
        self.sent = sent
        self.is_silent = is_silent


class ConnectFailedError(BackendError):
    """A connection that was refused or not established in time."""


class ConnectionClosedError(BackendError):
    """A connection that closed or broke before the reply arrived."""


DUPLICATE_FIELD: Final = 40413
_NOT_AN_OBJECT: Final = 10065
MISSING_FIELD: Final = 40414
UNKNOWN_FIELD: Final = 40415
VALUE_TOO_SMALL: Final = 51024


def missing_field(path: str) -> CommandError:
    """Build the error for a missing required field.

    ``path`` is ``<struct>.<field>``, where the struct is MongoDB's name for the arguments, usually the command's name.
    """
    return CommandError(MISSING_FIELD, f"BSON field '{path}' is missing but a required field")


def unknown_field(path: str) -> CommandError:
    """Build the error for a field that the command does not have."""
    return CommandError(UNKNOWN_FIELD, f"BSON field '{path}' is an unknown field.")


def duplicate_field(path: str) -> CommandError:
    """Build the error for a field that occurs twice."""
    return CommandError(DUPLICATE_FIELD, f"BSON field '{path}' is a duplicate field")


def not_allowed_strictly(path: str) -> CommandError:
    """Build the error for a field outside the Stable API, with ``apiStrict``."""
    return CommandError(ErrorCode.APIStrictError, f"BSON field '{path}' is not allowed with apiStrict:true.")


def wrong_type(path: str, kind: int, *expected: str) -> CommandError:
    """Build the error for the field ``<struct>.<field>`` of the wrong type."""
    # MongoDB's message misplaces the quote and bracket of the second form, too.
    expecting = f"type '{expected[0]}'" if len(expected) == 1 else f"types '[{', '.join(expected)}']"
    return CommandError(
        ErrorCode.TypeMismatch, f"BSON field '{path}' is the wrong type '{type_name(kind)}', expected {expecting}"
    )


def not_an_object(name: str) -> CommandError:
    """Build the error for a null in place of an array; MongoDB names the field without its struct here."""
    return CommandError(_NOT_AN_OBJECT, f"invalid parameter: expected an object ({name})")


def value_too_small(name: str, value: int, minimum: int) -> CommandError:
    """Build the error for a number below its minimum; MongoDB names the field without its struct here."""
    return CommandError(VALUE_TOO_SMALL, f"BSON field '{name}' value must be >= {minimum}, actual value '{value}'")
