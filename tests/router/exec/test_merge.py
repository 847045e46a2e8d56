"""Cursors over several shards, with scripted shards."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from shardwright.router.cursors.open_cursor import Cursor
from shardwright.router.exec.merge import MergeStage
from shardwright.router.lookup.environment import JoinEnvironment
from shardwright.router.reads.result_merger import ResultMerger
from shardwright.router.reads.sort_order import SortOrder
from shardwright.sharding.clock import VectorClock
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError, ConnectionClosedError
from shardwright.wire.rawbson import EMPTY_DOCUMENT
from shardwright.wire.transport.reservations import SERVED_CLIENT
from tests.router.exec.fakes import FakeSender, FakeShard, batch_of, cursor_of, get_more
from tests.router.reads.requests import request
from tests.transports import new_transport

if TYPE_CHECKING:
    from shardwright.router.sending.shard_sender import ShardSender


def merged(shards: Sequence[FakeShard], *, allows_partial_results: bool = False, **merging: Any) -> Cursor:  # noqa: ANN401 - as ResultMerger
    root = MergeStage(
        cast("ShardSender", FakeSender(shards)),
        "test.c",
        [shard.opening for shard in shards],
        ResultMerger(len(shards), **merging),
        allows_partial_results=allows_partial_results,
    )
    return Cursor("test.c", root, VectorClock())


def numbers(start: int, end: int) -> list[dict[str, Any]]:
    return [{"n": number} for number in range(start, end)]


async def test_batches_of_the_asked_size_until_all_is_returned() -> None:
    shards = [FakeShard("a", numbers(0, 5), first=2), FakeShard("b", numbers(5, 9), first=2)]
    cursor = merged(shards)
    first = await cursor.root.next_batch(get_more(3))
    assert len(first) == 3
    found: list[dict[str, Any]] = []
    sizes: list[int] = []
    while not cursor.root.is_exhausted:
        reply = await cursor.next_batch(get_more(2))
        sizes.append(len(batch_of(reply)))
        found += batch_of(reply)
        assert cursor_of(reply)["id"] == (0 if cursor.root.is_exhausted else 5)
    assert sizes == [2, 2, 2]
    assert len(found) == 6


async def test_a_first_batch_of_none_asks_no_shard() -> None:
    shards = [FakeShard("a", numbers(0, 5)), FakeShard("b", numbers(5, 9))]
    cursor = merged(shards)
    assert await cursor.root.next_batch(get_more(0)) == []
    assert not cursor.root.is_exhausted
    assert [shard.asked for shard in shards] == [[], []]


async def test_whole_batches_of_shards_answer_when_nothing_stands_between() -> None:
    shards = [FakeShard("a", numbers(0, 5), first=1), FakeShard("b", numbers(5, 9), first=1)]
    cursor = merged(shards)
    await cursor.root.next_batch(get_more(2))
    replies = [await cursor.next_batch(get_more()) for _ in range(2)]
    assert [batch_of(reply) for reply in replies] == [numbers(1, 5), numbers(6, 9)]
    assert [cursor_of(reply)["id"] for reply in replies] == [5, 0]
    assert [len(shard.asked) for shard in shards] == [1, 1]


async def test_the_other_shards_work_on_their_batches_meanwhile() -> None:
    shards = [FakeShard("a", numbers(0, 5), first=1), FakeShard("b", numbers(5, 9), first=1)]
    cursor = merged(shards)
    await cursor.root.next_batch(get_more(2))
    await cursor.next_batch(get_more())
    assert [len(shard.asked) for shard in shards] == [1, 1]
    for remote in cursor.root.remotes:
        remote.give_up()
    assert [shard.given_up for shard in shards] == [0, 1]


async def test_no_connection_is_kept_for_later_while_many_are_in_use() -> None:
    shards = [FakeShard("a", numbers(0, 5), first=1), FakeShard("b", numbers(5, 9), first=1)]
    shards[1].is_busy = True
    cursor = merged(shards)
    await cursor.root.next_batch(get_more(2))
    replies = [await cursor.next_batch(get_more())]
    assert [len(shard.asked) for shard in shards] == [1, 0]
    replies.append(await cursor.next_batch(get_more()))
    assert [batch_of(reply) for reply in replies] == [numbers(1, 5), numbers(6, 9)]


async def test_documents_that_were_not_returned_yet_are_counted() -> None:
    text = "x" * 100_000
    a = FakeShard("a", [{"n": n, "text": text, "$sortKey": [n]} for n in range(4)], first=1)
    b = FakeShard("b", [{"n": n, "text": text, "$sortKey": [n]} for n in range(10, 14)], first=3)
    cursor = merged([a, b], order=SortOrder((False,)))
    await cursor.root.next_batch(get_more(2))
    assert 300_000 < cursor.root.held_bytes < 301_000  # three of the second
    while not cursor.root.is_exhausted:
        await cursor.next_batch(get_more())
    assert cursor.root.held_bytes == 0


async def test_what_is_left_of_a_first_batch_goes_before_whole_batches() -> None:
    shards = [FakeShard("a", numbers(0, 5), first=2), FakeShard("b", numbers(5, 9), first=2)]
    cursor = merged(shards)
    await cursor.root.next_batch(get_more(3))
    replies = [await cursor.next_batch(get_more()) for _ in range(3)]
    assert [batch_of(reply) for reply in replies] == [numbers(6, 7), numbers(2, 5), numbers(7, 9)]
    assert [cursor_of(reply)["id"] for reply in replies] == [5, 5, 0]


async def test_sizes_can_be_asked_for_after_whole_batches() -> None:
    shards = [FakeShard("a", numbers(0, 4)), FakeShard("b", numbers(4, 8))]
    cursor = merged(shards)
    assert batch_of(await cursor.next_batch(get_more())) == numbers(0, 4)
    assert batch_of(await cursor.next_batch(get_more(3))) == numbers(4, 7)
    last = await cursor.next_batch(get_more(3))
    assert (batch_of(last), cursor_of(last)["id"]) == (numbers(7, 8), 0)


async def test_only_shards_whose_buffers_are_empty_are_asked() -> None:
    a = FakeShard("a", [{"n": n, "$sortKey": [n]} for n in range(4)], first=1)
    b = FakeShard("b", [{"n": n, "$sortKey": [n]} for n in range(10, 14)], first=1)
    cursor = merged([a, b], order=SortOrder((False,)))
    first = await cursor.root.next_batch(get_more(4))
    assert len(first) == 4
    assert len(a.asked) == 1
    assert b.asked == []


async def test_a_long_merge_holds_about_a_megabyte_of_each_shard() -> None:
    text = "x" * 10_000
    lower = FakeShard("a", [{"n": n, "text": text, "$sortKey": [n]} for n in range(0, 3000, 2)])
    upper = FakeShard("b", [{"n": n, "text": text, "$sortKey": [n]} for n in range(1, 3000, 2)])
    cursor = merged([lower, upper], order=SortOrder((False,)))
    await cursor.root.next_batch(get_more(0))
    found: list[dict[str, Any]] = []
    held: list[int] = []
    while not cursor.root.is_exhausted:
        found += batch_of(await cursor.next_batch(get_more()))
        held.append(cursor.root.held_bytes)
    assert [document["n"] for document in found] == list(range(3000))
    assert max(held) < 3 << 20
    for shard in (lower, upper):
        sizes = [command["batchSize"] for command in shard.asked]
        assert sizes[0] == 101  # their size is not known
        assert all(100 < size < 106 for size in sizes[1:])


@pytest.mark.parametrize(("size", "is_asked_ahead"), [(None, True), (150, False)])
async def test_shards_work_on_their_next_batches_during_a_long_merge(size: int | None, is_asked_ahead: bool) -> None:
    text = "x" * 100_000
    shards = [FakeShard(name, [{"n": n, "text": text, "$sortKey": [n]} for n in range(200)]) for name in "ab"]
    cursor = merged(shards, order=SortOrder((False,)))
    await cursor.root.next_batch(get_more(0))
    assert len(batch_of(await cursor.next_batch(get_more(size)))) == (167 if size is None else size)
    for remote in cursor.root.remotes:
        remote.give_up()
    assert [shard.given_up for shard in shards] == [is_asked_ahead] * 2


async def test_a_get_more_to_a_shard_carries_the_clients_session() -> None:
    shards = [FakeShard("a", numbers(0, 4)), FakeShard("b", [])]
    command = {"getMore": 5, "collection": "c", "lsid": {"id": b"x" * 16}, "comment": "hi", "foo": 1}
    await merged(shards).next_batch(get_more(3, command=command))
    [asked] = shards[0].asked
    assert asked == {
        "getMore": 100,
        "collection": "c",
        "batchSize": 3,
        "lsid": {"id": b"x" * 16},
        "comment": "hi",
        "$db": "test",
    }


@pytest.mark.parametrize("size", [None, 3])
async def test_a_shard_that_goes_away_fails_the_cursor(size: int | None) -> None:
    shards = [FakeShard("a", numbers(0, 4)), FakeShard("b", numbers(4, 8))]
    shards[1].failure = ConnectionClosedError("b.example:1", "closed the connection", sent=True)
    cursor = merged(shards)

    async def read_all() -> None:
        while not cursor.root.is_exhausted:
            await cursor.next_batch(get_more(size))

    with pytest.raises(CommandError, match="Error contacting shard b") as failed:
        await read_all()
    assert failed.value.code == ErrorCode.HostUnreachable


@pytest.mark.parametrize("size", [None, 3, 100])
async def test_a_shard_that_goes_away_is_left_out_if_partial_results_are_allowed(size: int | None) -> None:
    shards = [FakeShard("a", numbers(0, 4)), FakeShard("b", numbers(4, 8))]
    shards[1].failure = ConnectionClosedError("b.example:1", "closed the connection", sent=True)
    cursor = merged(shards, allows_partial_results=True)
    found: list[dict[str, Any]] = []
    while not cursor.root.is_exhausted:
        reply = await cursor.next_batch(get_more(size))
        found += batch_of(reply)
    assert cursor_of(reply)["partialResultsReturned"] is True
    assert found == numbers(0, 4)


async def test_an_error_of_a_shard_is_that_of_the_cursor() -> None:
    shards = [FakeShard("a", numbers(0, 4)), FakeShard("b", numbers(4, 8))]
    shards[0].failure = {"ok": 0.0, "errmsg": "gone", "code": 43}
    with pytest.raises(CommandError, match="gone"):
        await merged(shards, allows_partial_results=True).next_batch(get_more())


async def test_time_to_wait_is_for_cursors_that_await_data() -> None:
    shards = [FakeShard("a", numbers(0, 4)), FakeShard("b", [])]
    with pytest.raises(CommandError, match="non-awaitData cursor"):
        await merged(shards).next_batch(get_more(max_time_ms=5))


async def test_a_join_settles_the_memory_of_the_connection_that_reads_it() -> None:
    unread_replies = new_transport().unread_replies
    opener, reader = (cast("Any", SimpleNamespace(reserved_bytes=0, unread_replies=unread_replies)) for _ in range(2))
    for client in (opener, reader):
        unread_replies.reservations.add(client, 1_000_000)
        unread_replies.change_total(1_000_000)
    operation = SimpleNamespace(request=request({"aggregate": "c", "pipeline": []}), client=opener)
    environment = JoinEnvironment(
        cast("Any", operation), cast("Any", None), EMPTY_DOCUMENT, EMPTY_DOCUMENT, is_collated=False
    )
    shards = [FakeShard("a", numbers(0, 5), first=2), FakeShard("b", numbers(5, 9), first=2)]
    SERVED_CLIENT.set(reader)
    assert await merged(shards).root.next_batch(environment.reading)
    assert opener.reserved_bytes == 1_000_000
    assert reader.reserved_bytes < 1_000_000
