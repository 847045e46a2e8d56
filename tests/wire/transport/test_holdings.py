"""Memory held by cursors between two requests counts towards the limit for replies, and gives way to replies."""

from typing import TYPE_CHECKING, cast

import trio
from trio.testing import MockClock

from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.message import op_msg
from shardwright.wire.transport.reply_memory import Holding, UnreadReplies
from shardwright.wire.transport.reservations import UnreadBounds
from shardwright.wire.transport.transport import Transport
from tests.wire.transport.test_reservations import FRAME_BYTES, PING, REPLY_BYTES, in_front_of_shard, read_whole

if TYPE_CHECKING:
    from shardwright.wire.transport.client_connection import ClientConnection


class Batch(Holding):
    """Records that it was discarded."""

    def __init__(self) -> None:
        super().__init__()
        self.is_ended = False

    def end(self) -> None:
        self.is_ended = True


class FakeClient:
    """A client with nothing but its reservation."""

    class stream:
        is_closed = False

    reserved_bytes = 0


def counted(unread: UnreadReplies) -> tuple[int, int, int]:
    return unread.total_bytes, unread.reservations.total_bytes, unread.holdings.total_bytes


async def test_a_kept_reservation_is_counted_once() -> None:
    unread, batch = UnreadReplies(UnreadBounds(total_bytes=100)), Batch()
    client = cast("ClientConnection", FakeClient())
    unread.reservations.add(client, 30)
    unread.change_total(30)
    unread.holdings.keep(batch, 20, client)
    assert counted(unread) == (30, 10, 20)
    unread.reservations.release(client)
    assert counted(unread) == (20, 0, 20)
    unread.holdings.resume(batch, client)
    assert counted(unread) == (20, 20, 0)
    unread.reservations.settle(client, 5)
    assert counted(unread) == (5, 5, 0)
    unread.reservations.release(client)
    assert counted(unread) == (0, 0, 0)


async def test_long_idle_holdings_give_way_to_waiting_operations(autojump_clock: MockClock) -> None:
    unread = UnreadReplies(UnreadBounds(total_bytes=100, patience_seconds=10))
    old, new = Batch(), Batch()
    unread.holdings.keep(old, 40, None)
    await trio.sleep(6)
    unread.holdings.keep(new, 40, None)
    assert not unread.close_stalled()
    await trio.sleep(5)
    assert unread.close_stalled()
    assert (old.is_ended, new.is_ended) == (True, False)
    assert not unread.close_stalled()
    assert counted(unread) == (40, 0, 40)


async def test_a_holding_that_alone_exceeds_the_limit_replaces_all_others() -> None:
    unread = UnreadReplies(UnreadBounds(total_bytes=100))
    small, large, next_one = Batch(), Batch(), Batch()
    unread.holdings.keep(small, 40, None)
    unread.holdings.keep(large, 140, None)
    assert (small.is_ended, large.is_ended) == (True, False)
    unread.holdings.keep(next_one, 10, None)
    assert (large.is_ended, next_one.is_ended) == (True, False)


def test_a_reply_waits_for_room_occupied_by_idle_batches(transport: Transport) -> None:
    transport.unread_replies.bounds = UnreadBounds(total_bytes=2 * FRAME_BYTES, patience_seconds=1.0)

    async def main() -> None:
        async with in_front_of_shard(transport) as (served, _):
            batch = Batch()
            transport.unread_replies.holdings.keep(batch, 2 * FRAME_BYTES, None)
            client = await served.connect()
            await client.send(op_msg(PING, request_id=1))
            assert (await client.receive_document())["code"] == ErrorCode.ExceededMemoryLimit
            assert not batch.is_ended
            await trio.sleep(0.6)  # longer than ``patience_seconds``
            await client.send(op_msg(PING, request_id=2))
            await read_whole(client)
            assert batch.is_ended

    trio.run(main)


def test_replies_of_one_read_count_in_full(transport: Transport) -> None:
    transport.unread_replies.bounds = UnreadBounds(client_bytes=FRAME_BYTES)

    async def main() -> None:
        async with in_front_of_shard(transport, replies=3) as (served, _):
            client = await served.connect()
            await client.send(op_msg(PING, request_id=1))
            await read_whole(client)
            assert transport.unread_replies.peak_bytes > 2.5 * REPLY_BYTES

    trio.run(main)
