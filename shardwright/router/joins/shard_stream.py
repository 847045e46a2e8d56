"""The documents of a cursor on one shard."""

from collections.abc import Sequence

from shardwright.router.cursors.remote import RemoteCursor
from shardwright.router.replies.cursor_reply import CursorReply
from shardwright.router.replies.shard_reply import ShardReply
from shardwright.router.sending.shard_sender import ShardSender


class ShardStream:
    """See `streams.DocumentStream`."""

    def __init__(self, sender: ShardSender, reply: ShardReply) -> None:
        """Take over a cursor.

        Args:
            sender: sends requests to the shard.
            reply: the one that opened the cursor.

        Raises:
            RemoteProtocolError: it has no cursor.
        """
        cursor = CursorReply.of(reply)
        self._documents = cursor.documents()
        self._remote = RemoteCursor.opened(sender, reply, cursor)

    @property
    def remotes(self) -> Sequence[RemoteCursor]:
        """See `streams.DocumentStream`."""
        return (self._remote,)

    async def next_batch(self) -> list[bytes]:
        """See `streams.DocumentStream`."""
        documents, self._documents = self._documents, []
        while not documents and not self._remote.is_exhausted:
            reply = await self._remote.exchange(self._remote.get_more_frame(None, b""))
            if reply.error is not None:
                raise reply.error
            cursor = CursorReply.of(reply)
            self._remote.id = cursor.cursor_id
            documents = cursor.documents()
        return documents
