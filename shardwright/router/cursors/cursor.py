"""What all kinds of open cursors have in common."""

from collections.abc import Sequence
from typing import Protocol

from shardwright.router.cursors.get_more import GetMore
from shardwright.router.cursors.remote import RemoteCursor


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
