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
"""Errors about the arguments of a ``getMore``. They leave the cursor unchanged."""

API_PARAMETERS: Final = (b"apiVersion", b"apiStrict", b"apiDeprecationErrors")
"""Fields that a mongod requires in a ``getMore`` if the cursor was opened with them."""


@dataclass(frozen=True, slots=True)
class GetMore:
    """A ``getMore``, or the command that opens the cursor and requests its first batch.

    Attributes:
        client: the connection that sent it; None if the router itself reads the cursor.
        cursor_id: the router's id for the cursor, returned while the cursor is not exhausted; 0 before it has one.
        batch_size: the maximum number of documents, None for as many as fit.
        max_time_ms: how long an awaiting cursor may wait, None if not given.
    """

    request: Request
    client: ClientConnection | None
    cursor_id: int = 0
    batch_size: int | None = None
    max_time_ms: int | None = None


class Cursor(Protocol):
    """The results of one command that have not been returned yet.

    Reads of the next documents raise CommandError if a shard fails.
    """

    @property
    def namespace(self) -> str:
        """The ``db.collection`` that ``getMore`` must name."""

    @property
    def remotes(self) -> Sequence[RemoteCursor]:
        """The cursors on shards that this cursor reads, including exhausted ones."""

    @property
    def is_exhausted(self) -> bool:
        """Whether all results have been returned."""

    @property
    def held_bytes(self) -> int:
        """Memory used by documents that shards have returned and clients have not received yet."""

    async def next_batch(self, get_more: GetMore) -> bytes | None:
        """Return the reply frame for a ``getMore``; None if the reply has already been relayed to the client.

        Raises:
            CommandError: a shard failed. The cursor is then unusable, unless the error is in `ARGUMENT_ERRORS`.
        """


class OpeningCursor(Cursor, Protocol):
    """A cursor whose replies, including the first one, are built by the router."""

    async def first_batch(self, opening: GetMore) -> list[bytes]:
        """Return the documents of the first batch, by default 101."""

    def first_reply(self, opening: GetMore, documents: list[bytes], cursor_id: int) -> bytes:
        """Build the reply to the command that opened the cursor; ``cursor_id`` is 0 if the cursor is exhausted."""
