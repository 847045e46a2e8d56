"""Sending the requests of one transaction to shards, with its session fields in place of the client's."""

from collections.abc import Mapping
from struct import Struct
from typing import Final

import trio

from shardwright.router.replies.shard_reply import ShardReply
from shardwright.router.sending.shard_sender import PendingReply, ShardSender
from shardwright.router.transactions.router_transaction import OF_TRANSACTIONS, Phase, RouterTransaction
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.message import BODY_AT
from shardwright.wire.rawbson import index
from shardwright.wire.read_preference import PRIMARY, ReadPreference
from shardwright.wire.transport.reactor import in_own_task, may_run_in_reactor

_INT32: Final = Struct("<i")


def in_transaction(frame: bytes, elements: bytes) -> bytes:
    """Replace a request's session fields without parsing anything else.

    Args:
        frame: an OP_MSG of `wire.message.op_msg`, whose first section is the body.
        elements: from `RouterTransaction.join`.
    """
    end = BODY_AT + int(_INT32.unpack_from(frame, BODY_AT)[0])
    kept: list[bytes] = []
    kept_from = BODY_AT + 4
    for name, (_, element_start, _, value_end) in index(frame, BODY_AT).items():
        if name in OF_TRANSACTIONS:
            kept.append(frame[kept_from:element_start])
            kept_from = value_end
    kept += (frame[kept_from : end - 1], elements, frame[end - 1 :])
    length = sum(map(len, kept)) + BODY_AT + 4
    body_length = length - BODY_AT - (len(frame) - end)
    return b"".join((_INT32.pack(length), frame[4:BODY_AT], _INT32.pack(body_length), *kept))


class TransactionSender(ShardSender):
    """A sender for the statements of a transaction: adds its session fields to requests and notes replies.

    Requests go to primaries. A request that may have been executed is never repeated, because the shard would refuse to
    start the transaction twice.
    """

    def __init__(self, plain: ShardSender, transaction: RouterTransaction) -> None:
        super().__init__(*plain.parts)
        self._expected = plain._expected
        self.transaction = transaction
        # By shard: set after the reply to the request that starts the transaction there.
        self._starting: dict[str, trio.Event] = {}

    @may_run_in_reactor
    async def send(
        self,
        shard_id: str,
        frame: bytes,
        *,
        preference: ReadPreference = PRIMARY,
        may_repeat: bool = False,
        as_router: bool = False,
        sources: tuple[str, ...] = (),
    ) -> ShardReply:
        """Send a request of the transaction, see `ShardSender.send`; the shard becomes a participant.

        ``preference`` and ``may_repeat`` are ignored. A killed transaction raises Interrupted.
        """
        starting = self._starting.get(shard_id)
        if starting is not None:
            await in_own_task()
            await starting.wait()
        transaction = self.transaction
        if transaction.phase is Phase.ABORTED and shard_id not in self._expected:
            raise CommandError(ErrorCode.Interrupted, "operation was interrupted")
        is_new = shard_id not in transaction.participants
        if is_new:
            self._starting[shard_id] = trio.Event()
            # All participants read at one time. Reads chose it for their targeting; a write may come first.
            transaction.choose_time(self.clock.time.cluster_time)
        try:
            joining = in_transaction(frame, transaction.join(shard_id))
            reply = await super().send(shard_id, joining, as_router=as_router, sources=sources)
        finally:
            if is_new:
                self._starting.pop(shard_id).set()
        if reply.error is None or reply.error.code == ErrorCode.WouldChangeOwningShard:
            transaction.note_answer(shard_id, is_read_only=reply.take_read_only())
        elif is_new and reply.asks_for_another_way:
            transaction.leave(shard_id)  # the transaction has not begun there
        return reply

    @may_run_in_reactor
    async def send_to_all(
        self, frames: Mapping[str, bytes], replies: dict[str, ShardReply], *, preference: ReadPreference = PRIMARY
    ) -> None:
        """Send requests to several shards at once and read all replies, see `ShardSender.send_to_all`."""
        await self.send_each(frames, replies, preference)

    def may_ask_ahead(self, shard_id: str, address: str) -> bool:
        """Return False: a shard prepares a transaction only after it has answered all of its statements.

        Also, abandoning a cursor would interrupt its ``getMore``, which ends the transaction.
        """
        return False

    async def ask(self, shard_id: str, address: str, frame: bytes, sources: tuple[str, ...] = ()) -> PendingReply:
        """Send a ``getMore`` of the transaction, see `ShardSender.ask`."""
        return await super().ask(shard_id, address, in_transaction(frame, self.transaction.own_elements), sources)
