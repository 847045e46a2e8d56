"""The stage of a cursor on one shard, whose replies are forwarded to the client with the router's cursor id.

A long reply is relayed while it arrives (`BatchRelay`). A mongod writes the batch before the cursor id. All but the
last bytes can therefore pass through unparsed: the batch starts with its length, and the rest after it is short. The
digest of such a reply is the same reply with an empty batch.

Fields hidden from clients cannot be removed on the way, because the length of the reply comes first. Only genuine
shards send such fields. The reply that opened the cursor shows whether a member is one.
"""

from collections.abc import Sequence
from struct import Struct
from typing import Final

from shardwright.router.exec.remote import RemoteCursor
from shardwright.router.exec.stage import AS_CLIENT, RELAYED, GetMore, Relayed, Stage
from shardwright.router.replies.cursor_reply import NEXT_BATCH, CursorReply, is_whole_result
from shardwright.router.replies.reply_builder import signed
from shardwright.router.replies.shard_reply import ShardReply
from shardwright.router.sending.shard_sender import DigestRelay, ShardSender
from shardwright.sharding.cluster_time import TimeSigner
from shardwright.wire.cursor_batch import CURSOR, CURSOR_AT, FIRST_ELEMENT_AT, last_index
from shardwright.wire.frames import OP_MSG
from shardwright.wire.message import op_msg
from shardwright.wire.rawbson import ARRAY, EMPTY_DOCUMENT, element, without
from shardwright.wire.request import raw_elements
from shardwright.wire.request_validation import API_PARAMETERS
from shardwright.wire.transport.reply_memory import RelayedClient

_INT32: Final = Struct("<i")
_INT64: Final = Struct("<q")

# From the opcode on: OP_MSG, no flags, and a body section first.
_PLAIN: Final = OP_MSG.to_bytes(4, "little") + bytes(5)
_PLAIN_AT: Final = 12

# The start of the cursor in a mongod's reply to a getMore, without the lengths before and after it.
_BATCH: Final = element(NEXT_BATCH, ARRAY, b"")
_BATCH_AT: Final = CURSOR_AT + 4 + len(_BATCH)

_REST_BYTES_MAX: Final = 16_384
_TAIL_BYTES: Final = 65_536
"""Bytes at the end of a batch that are received together to count its documents."""

_WRITE_CONCERN_ERROR: Final = b"writeConcernError"


def relay_for(get_more: GetMore, signer: TimeSigner, *, is_last: bool) -> "BatchRelay | None":
    """Return a relay for a shard's reply to a client; None if the reply must be received as a whole."""
    client = get_more.client
    if client is None or not client.is_answered_verbatim or b"autocommit" in get_more.request.fields:
        return None  # replies in transactions receive a recovery token
    request_id = get_more.request.message.request_id
    return BatchRelay(
        client, signer, get_more.relayed, response_to=request_id, cursor_id=get_more.cursor_id, is_last=is_last
    )


class BatchRelay(DigestRelay):
    """Relay of the reply to one ``getMore``.

    Args:
        relayed: receives the size of the reply.
        is_last: whether all other sources are exhausted, so that the shard's end is the cursor's end.
    """

    def __init__(
        self,
        client: RelayedClient,
        signer: TimeSigner,
        relayed: Relayed,
        *,
        response_to: int,
        cursor_id: int,
        is_last: bool,
    ) -> None:
        super().__init__(client)
        self._signer = signer
        self._relayed = relayed
        self._response_to = response_to
        self._cursor_id = cursor_id
        self._is_last = is_last
        self._frame_bytes = self._rest_bytes = 0
        self._before_tail = b""
        self._cursor_bytes_after_batch = 0

    @property
    def patience_seconds(self) -> float:
        """The limit of a pooled connection, because the shard's connection returns to its pool afterwards."""
        return self.client.unread_replies.bounds.patience_seconds

    @property
    def relay_seconds(self) -> float:
        """See `patience_seconds`."""
        return self.client.unread_replies.bounds.relay_seconds

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
        self._frame_bytes = frame_bytes
        missing = batch_end - len(beginning)
        self._before_tail = beginning[-_TAIL_BYTES:] if missing < _TAIL_BYTES else b""
        kept_bytes = self._rest_bytes + min(_TAIL_BYTES, missing)
        return b"".join((beginning[:8], _INT32.pack(self._response_to), beginning[12:])), kept_bytes

    def end(self, kept: bytes) -> bytes:
        """See `Relay.end`.

        Raises:
            RemoteProtocolError: the cursor id after the batch is missing.
        """
        tail, rest = kept[: -self._rest_bytes], kept[-self._rest_bytes :]
        cursor_bytes = 4 + len(_BATCH) + len(EMPTY_DOCUMENT) + self._cursor_bytes_after_batch
        cursor = _INT32.pack(cursor_bytes) + _BATCH + EMPTY_DOCUMENT + rest
        body = CURSOR + cursor
        self.digest = op_msg(_INT32.pack(4 + len(body)) + body, request_id=0)
        found = CursorReply(self.digest, CURSOR_AT)
        is_over = found.cursor_id == 0 and self._is_last
        changed = signed(found.with_cursor_id(0 if is_over else self._cursor_id), self._signer, keeps_length=True)
        end_of_batch = self._before_tail + tail
        last = last_index(end_of_batch, 0, len(end_of_batch) - 1)
        self._relayed.frame_bytes, self._relayed.documents = self._frame_bytes, 0 if last is None else last + 1
        return tail + changed[-self._rest_bytes :]


class ShardStage(Stage):
    """The documents of a cursor on one shard.

    The opening reply may also be the shard's error, which a client receives as it is.

    Attributes:
        remote: the cursor; None if the opening reply has none.
    """

    __slots__ = ("_first", "_opening", "_passed_on", "remote", "reply_elements")

    awaits_data = True  # the shard decides
    held_bytes = 0  # batches are forwarded at once

    def __init__(self, sender: ShardSender, reply: ShardReply, *, passed_on: tuple[bytes, ...] = AS_CLIENT) -> None:
        """Adopt a cursor.

        Args:
            reply: the reply that opened it.
            passed_on: the fields that its ``getMore`` commands get from the `GetMore`.

        Raises:
            RemoteProtocolError: the reply has no cursor.
        """
        self._opening: ShardReply | None = reply
        self._passed_on = passed_on
        self._first: CursorReply | None = None
        self.remote: RemoteCursor | None = None
        self.reply_elements = b""
        if reply.error is None and not is_whole_result(reply):
            self._first = CursorReply.of(reply)
            self.remote = RemoteCursor.opened(sender, reply, self._first)

    @property
    def remotes(self) -> Sequence[RemoteCursor]:
        """See `Stage`."""
        return () if self.remote is None else (self.remote,)

    @property
    def plain_remote(self) -> RemoteCursor | None:
        """The shard's cursor if every ``getMore`` is passed on with only its id changed, otherwise None."""
        remote = self.remote
        if remote is None or API_PARAMETERS[0] not in self._passed_on or not remote.is_plain:
            return None
        return None if remote.sources or remote.is_asked else remote

    @property
    def is_exhausted(self) -> bool:
        """See `Stage`."""
        return self._opening is None and (self.remote is None or self.remote.id == 0)

    def raise_for_error(self) -> None:
        """Raise the error if the opening reply is one."""
        if self._opening is not None and self._opening.error is not None:
            raise self._opening.error

    def first_reply(self, cursor_id: int) -> bytes:
        """Return the opening reply for the client, with the router's id for the cursor; 0 if there is no cursor."""
        assert self._opening is not None
        opening, first, self._opening, self._first = self._opening, self._first, None, None
        return opening.for_client() if first is None or not cursor_id else first.with_cursor_id(cursor_id)

    async def next_batch(self, get_more: GetMore) -> list[bytes]:
        """See `Stage`. The first batch has the documents of the opening reply."""
        documents: list[bytes] = []
        if self._opening is not None:
            self.raise_for_error()
            documents = (self._first or CursorReply.of(self._opening)).documents()
            failed = self._opening.fields.get(_WRITE_CONCERN_ERROR)
            if failed is not None:
                self.reply_elements = self._opening.body[failed[1] : failed[3]]
            self._opening = self._first = None
        while not documents and self.remote is not None and not self.remote.is_exhausted:
            elements = raw_elements(get_more.request, self._passed_on)
            frame = self.remote.get_more_frame(get_more.batch_size, elements)
            documents = self.remote.received(await self.remote.exchange(frame)).documents()
        return documents

    async def answer(self, get_more: GetMore) -> bytes:
        """See `Stage`."""
        assert self.remote is not None
        request, remote = get_more.request, self.remote
        at = request.fields[b"getMore"][2]
        body = b"".join((request.body[:at], _INT64.pack(remote.id), request.body[at + 8 :]))
        if API_PARAMETERS[0] not in self._passed_on:
            body = without(body, API_PARAMETERS)
        relay = relay_for(get_more, remote.sender.signer, is_last=True) if remote.is_plain else None
        cursor = remote.received(await remote.exchange(op_msg(body, request_id=request.message.request_id), relay))
        if relay is not None and relay.digest:
            return RELAYED
        return cursor.with_cursor_id(get_more.cursor_id) if cursor.cursor_id else cursor.frame
