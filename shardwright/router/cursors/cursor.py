"""The interface of all kinds of open cursors, and a client's request for the next batch."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from shardwright.router.cursors.remote import RemoteCursor
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import MISSING_FIELD, UNKNOWN_FIELD, VALUE_TOO_SMALL
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


class Cursor(Protocol):
    """The results of one command that were not returned yet."""

    @property
    def namespace(self) -> str:
        """The ``db.collection`` that ``getMore`` has to name."""

    @property
    def remotes(self) -> Sequence[RemoteCursor]:
        """The cursors on shards that it reads, including exhausted ones."""

    @property
    def is_exhausted(self) -> bool:
        """Whether everything has been returned."""

    @property
    def held_bytes(self) -> int:
        """Memory used by documents that shards have returned and clients have not received yet."""

    async def next_batch(self, get_more: GetMore) -> bytes | None:
        """The frame that answers a ``getMore``; None if the answer has already been relayed to the client.

        Raises:
            CommandError: a shard failed; the cursor is no longer usable, unless the error is about the arguments.
        """


class OpeningCursor(Cursor, Protocol):
    """A cursor whose replies are made by the router, the first one too."""

    async def first_batch(self, opening: GetMore) -> list[bytes]:
        """The documents of the first batch; of the default number if none is given.

        Raises:
            CommandError: a shard failed.
        """

    def first_reply(self, opening: GetMore, documents: list[bytes], cursor_id: int) -> bytes:
        """The reply to the command that opened the cursor; ``cursor_id`` is 0 if it is exhausted."""
