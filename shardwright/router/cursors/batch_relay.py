"""Relay of one shard's long batch to the client while it arrives, under the router's cursor id.

A mongod writes the batch before the cursor id. All but the last bytes can therefore pass through unparsed: the batch
starts with its length, and the rest after it is short. The digest of such a reply is the same reply with an empty
batch.

Fields hidden from clients cannot be removed on the way, because the length of the reply comes first. Only genuine
shards send such fields. The reply that opened the cursor shows whether a member is one.
"""

from struct import Struct
from typing import Final

from shardwright.router.cursors.cursor import GetMore
from shardwright.router.replies.cursor_reply import NEXT_BATCH, CursorReply
from shardwright.router.replies.reply_tail import signed
from shardwright.router.sending.pending_reply import DigestRelay
from shardwright.sharding.time_signer import TimeSigner
from shardwright.wire.cursor_batch import CURSOR, CURSOR_AT, FIRST_ELEMENT_AT
from shardwright.wire.frames import OP_MSG
from shardwright.wire.message import op_msg
from shardwright.wire.rawbson import ARRAY, EMPTY_DOCUMENT, element
from shardwright.wire.transport.reply_memory import UNREAD_REPLIES
from shardwright.wire.transport.stream import FrameStream

_INT32: Final = Struct("<i")
_INT64: Final = Struct("<q")

# From the opcode on: OP_MSG, no flags, and a body section first.
_PLAIN: Final = OP_MSG.to_bytes(4, "little") + bytes(5)
_PLAIN_AT: Final = 12

# The start of the cursor in a mongod's reply to a getMore, without the lengths before and after it.
_BATCH: Final = element(NEXT_BATCH, ARRAY, b"")
_BATCH_AT: Final = CURSOR_AT + 4 + len(_BATCH)

_REST_BYTES_MAX: Final = 16_384


def relay_for(get_more: GetMore, signer: TimeSigner, *, is_last: bool) -> "BatchRelay | None":
    """Return a relay for a shard's reply to a client; None if the reply must be received as a whole."""
    client = get_more.client
    if client is None or not client.is_answered_verbatim or b"autocommit" in get_more.request.fields:
        return None  # replies in transactions receive a recovery token
    request_id = get_more.request.message.request_id
    return BatchRelay(client.stream, signer, response_to=request_id, cursor_id=get_more.cursor_id, is_last=is_last)


class BatchRelay(DigestRelay):
    """Relays the reply to one ``getMore``.

    Args:
        is_last: whether all other sources are exhausted, so that the shard's end is the cursor's end.
    """

    def __init__(
        self, receiver: FrameStream, signer: TimeSigner, *, response_to: int, cursor_id: int, is_last: bool
    ) -> None:
        super().__init__(receiver)
        self._signer = signer
        self._response_to = response_to
        self._cursor_id = cursor_id
        self._is_last = is_last
        self._rest_bytes = 0
        self._cursor_bytes_after_batch = 0

    @property
    def patience_seconds(self) -> float:
        """The limit of a pooled connection, because the shard's connection returns to its pool afterwards."""
        return UNREAD_REPLIES.bounds.patience_seconds

    @property
    def relay_seconds(self) -> float:
        """See `patience_seconds`."""
        return UNREAD_REPLIES.bounds.relay_seconds

    def begin(self, beginning: bytes) -> tuple[bytes, int] | None:
        """See `Relay.begin`."""
        if not (
            beginning.startswith(_PLAIN, _PLAIN_AT)
            and beginning.startswith(CURSOR, FIRST_ELEMENT_AT)
            and beginning.startswith(_BATCH, CURSOR_AT + 4)
            and len(beginning) >= _BATCH_AT + 4
        ):
            return None
        frame_bytes = _INT32.unpack_from(beginning)[0]
        batch_end = _BATCH_AT + _INT32.unpack_from(beginning, _BATCH_AT)[0]
        cursor_end = CURSOR_AT + _INT32.unpack_from(beginning, CURSOR_AT)[0]
        if not (len(beginning) <= batch_end < cursor_end < frame_bytes <= batch_end + _REST_BYTES_MAX):
            return None
        self._rest_bytes = frame_bytes - batch_end
        self._cursor_bytes_after_batch = cursor_end - batch_end
        return b"".join((beginning[:8], _INT32.pack(self._response_to), beginning[12:])), self._rest_bytes

    def end(self, rest: bytes) -> bytes:
        """See `Relay.end`.

        Raises:
            RemoteProtocolError: the cursor id after the batch is missing.
        """
        cursor_bytes = 4 + len(_BATCH) + len(EMPTY_DOCUMENT) + self._cursor_bytes_after_batch
        cursor = _INT32.pack(cursor_bytes) + _BATCH + EMPTY_DOCUMENT + rest
        body = CURSOR + cursor
        self.digest = op_msg(_INT32.pack(4 + len(body)) + body, request_id=0)
        found = CursorReply(self.digest, CURSOR_AT)
        is_over = found.cursor_id == 0 and self._is_last
        changed = signed(found.with_cursor_id(0 if is_over else self._cursor_id), self._signer, keeps_length=True)
        return changed[-self._rest_bytes :]
