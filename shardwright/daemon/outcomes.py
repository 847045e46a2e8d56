"""The outcome of an operation for metrics and the log of slow operations: ``ok`` or the name of an error code.

Failures other than a `CommandError` get the name of the corresponding MongoDB code, so that an alert on outcomes other
than ``ok`` covers every kind of failure.
"""

from typing import Final

import trio

from shardwright.wire.error_codes import ErrorCode, code_name
from shardwright.wire.errors import BackendError, CommandError, RemoteProtocolError
from shardwright.wire.message import MORE_TO_COME
from shardwright.wire.request import Request
from shardwright.wire.transport.client_connection import ClientConnection

OK: Final = "ok"
CLIENT_DISCONNECT: Final = code_name(ErrorCode.ClientDisconnect)
HOST_UNREACHABLE: Final = code_name(ErrorCode.HostUnreachable)
INTERNAL_ERROR: Final = code_name(ErrorCode.InternalError)
INTERRUPTED_AT_SHUTDOWN: Final = code_name(ErrorCode.InterruptedAtShutdown)
PROTOCOL_ERROR: Final = code_name(ErrorCode.ProtocolError)

FAULTS: Final = (
    CLIENT_DISCONNECT,
    HOST_UNREACHABLE,
    code_name(ErrorCode.FailedToSatisfyReadPreference),
    INTERRUPTED_AT_SHUTDOWN,
    PROTOCOL_ERROR,
    INTERNAL_ERROR,
)
"""Outcomes that no argument of a client causes. An alert watches them over all commands."""


def outcome_of_failure(failure: BaseException, client: ClientConnection) -> str:
    """The outcome of an operation that ended in an exception.

    Args:
        failure: the exception raised by its handler.
        client: the client that sent it.
    """
    if isinstance(failure, BaseExceptionGroup):
        # The first failure in a nursery has cancelled everything else.
        first, _ = failure.split(lambda each: not isinstance(each, trio.Cancelled | BaseExceptionGroup))
        return outcome_of_failure(_first_leaf(first or failure), client)
    if isinstance(failure, CommandError):
        return failure.code_name
    if isinstance(failure, BackendError):
        return HOST_UNREACHABLE
    if isinstance(failure, trio.Cancelled):
        if client.interruption is not None:
            return client.interruption.code_name
        return CLIENT_DISCONNECT if client.is_disconnected else INTERRUPTED_AT_SHUTDOWN
    if isinstance(failure, RemoteProtocolError):
        return PROTOCOL_ERROR
    if isinstance(failure, OSError):
        return CLIENT_DISCONNECT  # errors of other connections are BackendErrors
    return INTERNAL_ERROR


def outcome_of_success(client: ClientConnection, request: Request) -> str:
    """The outcome of an operation that succeeded: ``ok``, or ClientDisconnect if the client left before the reply."""
    if client.is_disconnected and not request.message.flags & MORE_TO_COME:
        return CLIENT_DISCONNECT
    return OK


def _first_leaf(failure: BaseException) -> BaseException:
    while isinstance(failure, BaseExceptionGroup):
        failure = failure.exceptions[0]
    return failure
