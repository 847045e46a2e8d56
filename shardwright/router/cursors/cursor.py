"""What every open cursor of the router can do, whatever it is made of."""

from collections.abc import Sequence
from typing import Protocol

from shardwright.router.cursors.get_more import GetMore
from shardwright.router.cursors.remote import RemoteCursor


class Cursor(Protocol):
    """The results of one command, as far as they were not returned yet."""

    @property
    def namespace(self) -> str:
        """``db.collection`` by which ``getMore`` has to name it."""

    @property
    def remotes(self) -> Sequence[RemoteCursor]:
        """The cursors on shards that it is made of, those that are exhausted too."""

    @property
    def is_exhausted(self) -> bool:
        """Whether everything has been returned."""

    @property
    def held_bytes(self) -> int:
        """Memory of what shards have returned and clients have not got yet."""

    async def next_batch(self, get_more: GetMore) -> bytes | None:
        """The frame that answers a ``getMore``; None when the client has got it already.

        Raises:
            CommandError: a shard failed; the cursor is of no more use, unless the error is about the arguments.
        """
