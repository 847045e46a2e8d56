"""A cursor on one shard, whose replies are forwarded with the router's cursor id."""

from collections.abc import Sequence
from struct import Struct
from typing import Final

from shardwright.router.cursors.batch_relay import relay_for
from shardwright.router.cursors.cursor import API_PARAMETERS, GetMore
from shardwright.router.cursors.remote import RemoteCursor
from shardwright.router.replies.cursor_reply import CursorReply
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.message import op_msg
from shardwright.wire.rawbson import without

_INT64: Final = Struct("<q")


class SingleShardCursor:
    """Forwards ``getMore`` to one shard.

    Args:
        has_api_parameters: whether it was opened with the client's `API_PARAMETERS`.
    """

    __slots__ = ("_has_api_parameters", "_remote")

    def __init__(self, remote: RemoteCursor, *, has_api_parameters: bool = True) -> None:
        self._remote = remote
        self._has_api_parameters = has_api_parameters

    @property
    def namespace(self) -> str:
        """See `Cursor`."""
        return self._remote.namespace

    @property
    def remotes(self) -> Sequence[RemoteCursor]:
        """See `Cursor`."""
        return (self._remote,)

    @property
    def is_exhausted(self) -> bool:
        """See `Cursor`."""
        return self._remote.is_exhausted

    @property
    def held_bytes(self) -> int:
        """Always 0, because the shard's batches are forwarded at once."""
        return 0

    async def next_batch(self, get_more: GetMore) -> bytes | None:
        """Return the shard's reply, with the router's cursor id.

        Raises:
            CommandError: the shard could not be reached, or has lost the cursor.
        """
        request, remote, cursor_id = get_more.request, self._remote, get_more.cursor_id
        at = request.fields[b"getMore"][2]
        body = b"".join((request.body[:at], _INT64.pack(remote.id), request.body[at + 8 :]))
        if not self._has_api_parameters:
            body = without(body, API_PARAMETERS)
        relay = relay_for(get_more, remote.sender.signer, is_last=True) if remote.is_plain else None
        reply = await remote.exchange(op_msg(body, request_id=request.message.request_id), relay)
        if reply.error is not None:
            if reply.error.code == ErrorCode.CursorNotFound:
                remote.id = 0
            raise reply.error
        cursor = CursorReply.of(reply)
        remote.id = cursor.cursor_id
        if relay is not None and relay.digest:
            return None
        return cursor.with_cursor_id(cursor_id) if cursor.cursor_id else cursor.frame
