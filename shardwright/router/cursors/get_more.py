"""A client's request for the next batch of a cursor."""

from dataclasses import dataclass
from typing import Final

from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.field_errors import MISSING_FIELD, UNKNOWN_FIELD, VALUE_TOO_SMALL
from shardwright.wire.request import Request
from shardwright.wire.transport.client_connection import ClientConnection

ARGUMENT_ERRORS: Final = frozenset(
    {
        ErrorCode.BadValue,
        ErrorCode.FailedToParse,
        ErrorCode.TypeMismatch,
        MISSING_FIELD,
        UNKNOWN_FIELD,
        VALUE_TOO_SMALL,
    }
)
"""Errors about the arguments of a ``getMore``, which leave the cursor unchanged."""

API_PARAMETERS: Final = (b"apiVersion", b"apiStrict", b"apiDeprecationErrors")
"""A mongod demands that a ``getMore`` has those that the cursor was opened with."""


@dataclass(frozen=True, slots=True)
class GetMore:
    """A ``getMore``, or the command that opens the cursor and wants its first batch.

    Attributes:
        request: the client's command.
        client: the connection that sent it; None if the router reads the cursor for itself.
        cursor_id: the router's id for the cursor, to appear in the reply while the cursor is not exhausted; 0 while it
            has none.
        batch_size: how many documents at most, None for as many as fit.
        max_time_ms: how long an awaiting cursor may wait, None if not given.
    """

    request: Request
    client: ClientConnection | None
    cursor_id: int = 0
    batch_size: int | None = None
    max_time_ms: int | None = None
