"""The cursor of a change stream on scripted shards: its returned and omitted events, and its reopening."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

import bson
import pytest
import trio
import trio.testing

from shardwright.router.change_streams.catalog_events import CATALOG_EVENTS
from shardwright.router.change_streams.merger import Event, EventMerger
from shardwright.router.change_streams.stream_stage import ChangeStreamStage
from shardwright.router.change_streams.tokens import ResumeToken
from shardwright.router.cursors.open_cursor import Cursor
from shardwright.router.exec.stage import GetMore
from shardwright.sharding.clock import VectorClock
from shardwright.wire.errors import CommandError
from shardwright.wire.message import OpMsg
from tests.router.change_streams.tokens import mark, token
from tests.router.reads.requests import request

PRIMARY, OTHER = "primary", "other"


def event(time: int, kind: str = "insert", source: str = PRIMARY) -> Event:
    of = token(time, invalidates=kind == "invalidate")
    return Event(source, of, bson.encode({"_id": {"_data": of.data}, "operationType": kind}))


def moved(source: str) -> Event:
    """One of two events about the same ``_id`` at the same time."""
    data = token(3).data.removesuffix("04") + "5A1004EC86AF65B89A489DB40094343625336B461E5F6964002B140004"
    return Event(
        source,
        ResumeToken(data, bson.encode({"_data": data})),
        bson.encode({"_id": {"_data": data}, "operationType": "insert"}),
    )


class Streams:
    """Two shards; each read has the next batches of both.

    Args:
        reads: the events of each read, in order, and the time that both shards promise then.

    Attributes:
        reopened: the shards whose streams were reopened, and after which event.
        waits: how long the shards were to wait, in each read.
    """

    def __init__(self, *reads: tuple[list[Event], int]) -> None:
        self.merger = EventMerger()
        for source in (PRIMARY, OTHER):
            self.merger.add(source, mark(0))
        self.remotes = ()
        self.reopened: list[tuple[str, ResumeToken]] = []
        self.waits: list[int] = []
        self._reads = list(reads)

    async def read(self, get_more: GetMore, wait_ms: int, position: ResumeToken) -> None:
        """The next read; without one, nothing happens."""
        self.waits.append(wait_ms)
        if not self._reads:
            await trio.sleep(wait_ms / 1000)
            return
        events, promise = self._reads.pop(0)
        for source in (PRIMARY, OTHER):
            self.merger.feed(source, [each for each in events if each.source == source], mark(promise))

    async def reopen(self, get_more: GetMore, shard_id: str, after: ResumeToken) -> None:
        """Take note."""
        self.reopened.append((shard_id, after))


class Owner:
    """The other shard's changes of the catalog are repetitions."""

    async def is_repetition(self, found: Event, operation_type: str) -> bool:
        """Whether it is from the other shard."""
        return found.source == OTHER and operation_type in CATALOG_EVENTS


class View:
    """Shows events as they are, but for updates."""

    async def of(self, events: Sequence[Event]) -> list[tuple[ResumeToken, bytes]]:
        """The events."""
        return [(each.token, each.document) for each in events if b"update" not in each.document]


def cursor(
    streams: Streams, start: ResumeToken, position: ResumeToken | None = None, *, must_be_found: bool = False
) -> Cursor:
    found = start if must_be_found else None
    parts: list[Any] = [streams, Owner(), View(), start, position or start, found]
    return Cursor("d.c", ChangeStreamStage(*parts, reads_at_once=False), VectorClock())


async def read(stream: Cursor, batch_size: int | None = None) -> dict[str, Any]:
    """The cursor in the reply to a ``getMore``."""
    get_more = GetMore(request({"getMore": 7, "collection": "c"}), cast("Any", None), 7, batch_size, 500)
    frame = await stream.next_batch(get_more)
    assert frame is not None
    found: dict[str, Any] = bson.decode(OpMsg(frame).body)["cursor"]
    return found


def kinds(reply: dict[str, Any]) -> list[str]:
    return [found["operationType"] for found in reply["nextBatch"]]


def run(check: Callable[[], Awaitable[None]]) -> None:
    clock = trio.testing.MockClock(autojump_threshold=0)
    trio.run(check, clock=clock)


def test_the_position_follows_what_was_returned() -> None:
    async def check() -> None:
        stream = cursor(Streams(([event(3), event(4), event(5, source=OTHER)], 9)), mark(1))
        reply = await read(stream, 2)
        assert [found["_id"] for found in reply["nextBatch"]] == [bson.decode(token(n).raw) for n in (3, 4)]
        assert reply["postBatchResumeToken"] == bson.decode(token(4).raw)
        assert (await read(stream))["postBatchResumeToken"] == bson.decode(mark(9).raw)
        assert kinds(await read(stream)) == []

    run(check)


def test_events_from_before_the_first_token_are_shown() -> None:
    """A shard that was behind has written them while the stream was opened. The token does not go back."""

    async def check() -> None:
        stream = cursor(Streams(([event(2), event(6)], 4), ([], 7)), mark(1), mark(5))
        reply = await read(stream)
        assert [found["_id"] for found in reply["nextBatch"]] == [bson.decode(token(2).raw)]
        assert reply["postBatchResumeToken"] == bson.decode(mark(5).raw)
        assert [found["_id"] for found in (await read(stream))["nextBatch"]] == [bson.decode(token(6).raw)]

    run(check)


def test_what_the_client_rejects_advances_the_position() -> None:
    async def check() -> None:
        stream = cursor(Streams(([event(3, "update")], 4), ([event(5)], 6)), mark(1))
        assert kinds(await read(stream)) == ["insert"]
        reply = await read(cursor(Streams(([event(3, "update")], 4)), mark(1)))
        assert (reply["nextBatch"], reply["postBatchResumeToken"]) == ([], bson.decode(mark(4).raw))

    run(check)


def test_shards_wait_longer_the_longer_nothing_happens() -> None:
    async def check() -> None:
        streams = Streams()
        stream = cursor(streams, mark(1))
        await read(stream)
        assert streams.waits[:-1] == sorted(streams.waits[:-1]), "the last wait ends with the client's time"
        assert streams.waits[0] == 20
        assert sum(streams.waits) <= 510

    run(check)


def test_a_repeated_drop_is_left_out_and_its_stream_reopened() -> None:
    async def check() -> None:
        dropped = [event(3, "drop", OTHER), event(3, "invalidate", OTHER), event(4, "drop"), event(4, "invalidate")]
        streams = Streams((dropped, 5))
        stream = cursor(streams, mark(1))
        reply = await read(stream)
        assert kinds(reply) == ["drop", "invalidate"]
        assert reply["id"] == 0
        assert stream.root.is_exhausted
        assert streams.reopened == [(OTHER, token(3, invalidates=True))]

    run(check)


def test_the_batch_after_one_that_the_last_event_fills_is_empty() -> None:
    """As on a genuine router: who reads single events asks once more after the last one."""

    async def check() -> None:
        stream = cursor(Streams(([event(4, "drop"), event(4, "invalidate")], 5)), mark(1))
        replies = [await read(stream, 1) for _ in range(3)]
        assert [kinds(each) for each in replies] == [["drop"], ["invalidate"], []]
        assert [each["id"] for each in replies] == [7, 7, 0]

    run(check)


def test_the_event_after_which_it_resumes_is_not_repeated() -> None:
    async def check() -> None:
        stream = cursor(Streams(([event(2), event(3), event(4)], 9)), token(3), must_be_found=True)
        reply = await read(stream)
        assert [found["_id"] for found in reply["nextBatch"]] == [bson.decode(token(4).raw)]

    run(check)


def test_two_shards_events_with_one_token_are_resumed_after_one_by_one() -> None:
    def streams() -> Streams:
        return Streams(([moved(PRIMARY), moved(OTHER), event(4)], 9))

    async def check() -> None:
        tokens = [found["_id"] for found in (await read(cursor(streams(), mark(1))))["nextBatch"]]
        assert len({found["_data"] for found in tokens}) == 3
        for count, found in enumerate(tokens[:2], 1):
            start = ResumeToken.received(bson.encode(found))
            reply = await read(cursor(streams(), start, must_be_found=True))
            assert [each["_id"] for each in reply["nextBatch"]] == tokens[count:]

    run(check)


def test_it_resumes_after_an_event_whose_twin_was_on_a_removed_shard() -> None:
    async def check() -> None:
        start = moved(OTHER).token.repeated()
        reply = await read(cursor(Streams(([moved(PRIMARY), event(4)], 9)), start, must_be_found=True))
        assert [found["_id"] for found in reply["nextBatch"]] == [bson.decode(token(4).raw)]

    run(check)


@pytest.mark.parametrize("events", [[], [event(4)], [event(2)]])
def test_the_event_after_which_it_resumes_is_missing(events: list[Event]) -> None:
    async def check() -> None:
        stream = cursor(Streams((events, 9)), token(3), must_be_found=True)
        with pytest.raises(CommandError, match="the resume token was not found") as raised:
            await read(stream)
        assert raised.value.labels == ("NonResumableChangeStreamError",)

    run(check)


def test_an_old_event_says_nothing_about_the_one_that_is_sought() -> None:
    async def check() -> None:
        streams = Streams(([event(2)], 3), ([event(3), event(4)], 9))
        assert kinds(await read(cursor(streams, token(3), must_be_found=True))) == ["insert"]

    run(check)
