"""Reading the streams of several shards, some of them idle, some new."""

from collections.abc import Awaitable, Callable

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from shardwright.router.change_streams.errors import RESUMABLE, labelled
from shardwright.router.change_streams.shard_streams import ShardStreams
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from tests.router.change_streams.fake_cluster import QUIET_MS, FakeCluster
from tests.router.change_streams.tokens import mark
from tests.router.exec.fakes import get_more

SECONDS_MAX = 300.0


def run(check: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        with trio.fail_after(SECONDS_MAX):
            await check()

    trio.run(bounded, clock=trio.testing.MockClock(autojump_threshold=0))


async def take(streams: ShardStreams, count: int, wait_ms: int = 20) -> list[int]:
    """The times of the next events."""
    taken: list[int] = []
    while len(taken) < count:
        while (event := streams.merger.next_event()) is not None:
            streams.merger.take()
            taken.append(event.token.time.inc)
        if len(taken) < count:
            await streams.read(get_more(), wait_ms, mark(taken[-1]) if taken else mark(1))
    return taken


def test_an_event_does_not_wait_for_idle_shards() -> None:
    async def check() -> None:
        cluster = FakeCluster("a", "b", "c")
        streams = await cluster.open_streams(1)
        time = cluster.write("b")
        started = trio.current_time()
        assert await take(streams, 1) == [time]
        assert trio.current_time() - started < 0.1

    run(check)


def test_a_stream_on_a_removed_shard_can_be_resumed() -> None:
    async def check() -> None:
        cluster = FakeCluster("a", "b")
        streams = await cluster.open_streams(1)
        cluster.remove_shard("b")
        with pytest.raises(CommandError) as raised, labelled():
            await streams.read(get_more(), 20, mark(1))
        assert (raised.value.code, raised.value.labels) == (ErrorCode.RetryChangeStream, (RESUMABLE,))

    run(check)


def test_a_shard_that_is_interrupted_repeats_no_event() -> None:
    async def check() -> None:
        cluster = FakeCluster("a", "b")
        streams = await cluster.open_streams(1)
        times = [cluster.write("a")]
        assert await take(streams, 1) == times
        found: list[int] = []

        async def take_one() -> None:
            found.extend(await take(streams, 1, wait_ms=5000))

        for shard in ("b", "a", "b"):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(take_one)
                await trio.sleep(1)
                times.append(cluster.write(shard))
        assert found == times[1:]
        assert cluster.killed, "a wait was interrupted"

    run(check)


def test_an_event_interrupts_a_long_wait_of_other_shards() -> None:
    async def check() -> None:
        cluster = FakeCluster("a", "b")
        streams = await cluster.open_streams(1)
        found: list[int] = []

        async def take_one() -> None:
            found.extend(await take(streams, 1, wait_ms=10_000))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(take_one)
            await trio.sleep(5)
            time = cluster.write("a")
            written = trio.current_time()
        assert found == [time]
        assert trio.current_time() - written < 0.1
        assert cluster.killed == ["b"]
        later = [cluster.write("b"), cluster.write("a"), cluster.write("b")]
        assert await take(streams, 3) == later, "the stream that was opened again misses nothing"

    run(check)


def test_nothing_is_written_while_nothing_happens() -> None:
    async def check() -> None:
        cluster = FakeCluster("a", "b")
        streams = await cluster.open_streams(1)
        for _ in range(5):
            await streams.read(get_more(), QUIET_MS - 1, mark(1))
        assert [len(shard.oplog) for shard in cluster.shards.values()] == [1, 1]
        assert cluster.reads_of_topology == 0

    run(check)


def test_a_stream_keeps_up_with_busy_shards() -> None:
    async def check() -> None:
        cluster = FakeCluster("a", "b")
        streams = await cluster.open_streams(1)
        delays: list[float] = []

        async def write() -> None:
            for number in range(200):
                written[cluster.write("ab"[number % 2])] = trio.current_time()
                await trio.sleep(0.0005)

        written: dict[int, float] = {}
        async with trio.open_nursery() as nursery:
            nursery.start_soon(write)
            while len(delays) < 200:
                delays += [trio.current_time() - written[time] for time in await take(streams, 1)]
        assert max(delays) < 0.05, "a request takes a millisecond"

    run(check)


@pytest.mark.parametrize("has_room", [True, False])
def test_shards_whose_events_wait_are_read_along(monkeypatch: pytest.MonkeyPatch, has_room: bool) -> None:
    if not has_room:
        monkeypatch.setattr("shardwright.router.change_streams.shard_streams._AHEAD_BYTES_MAX", 0)

    async def check() -> None:
        cluster = FakeCluster("a", "b")
        streams = await cluster.open_streams(1)
        times = [cluster.write("a"), cluster.write("b")]
        await streams.read_shard(get_more(), "a", 1)
        assert streams.merger.held_back is not None
        times.append(cluster.write("a"))
        asked = cluster.shards["a"].asked
        await streams.read(get_more(), 20, mark(1))
        assert cluster.shards["a"].asked == asked + has_room
        assert await take(streams, 3) == times

    run(check)


def test_a_new_shard_is_noticed_before_a_later_event_is_returned() -> None:
    async def check() -> None:
        cluster = FakeCluster("a")
        streams = await cluster.open_streams(1)
        cluster.add_shard("new")
        times = [cluster.write("new"), cluster.write("a"), cluster.write("new")]
        cluster.write("a")
        assert (await take(streams, 4))[:3] == times
        assert len(cluster.shards["new"].opened_at) == 1

    run(check)


def test_a_start_in_the_future_advances_no_clock() -> None:
    async def check() -> None:
        cluster = FakeCluster("a", "b")
        streams = await cluster.open_streams(1000, shards_as_of=1)
        for _ in range(3):
            await streams.read(get_more(), QUIET_MS - 1, mark(1000))
        assert [len(shard.oplog) for shard in (*cluster.shards.values(), cluster.config)] == [1, 1, 1]

    run(check)


steps = st.lists(
    st.one_of(st.tuples(st.just("write"), st.integers(0, 9)), st.sampled_from([("read", 0), ("add", 0)])), max_size=40
)


@given(steps, st.sampled_from([20, 5000]))
def test_all_events_come_once_and_in_order(script: list[tuple[str, int]], wait_ms: int) -> None:
    async def check() -> None:
        cluster = FakeCluster("0", "1")
        streams = await cluster.open_streams(1)
        written: list[int] = []
        taken: list[int] = []

        async def read(count: int) -> None:
            taken.extend(await take(streams, count, wait_ms))

        for what, number in script:
            if what == "write":
                written.append(cluster.write(str(number % len(cluster.shards))))
            elif what == "add":
                cluster.add_shard(str(len(cluster.shards)))
            elif len(taken) < len(written):
                await read(1)
        if len(taken) < len(written):
            await read(len(written) - len(taken))
        assert taken == written

    run(check)


def test_a_read_that_is_cancelled_leaves_its_requests_to_the_next() -> None:
    async def check() -> None:
        cluster = FakeCluster("a", "b")
        streams = await cluster.open_streams(1)
        cluster.shards["b"].is_awake = trio.Event()
        time = cluster.write("a")
        for _ in range(3):
            with trio.move_on_after(5) as limit:
                await streams.read(get_more(), QUIET_MS, mark(1))
            assert limit.cancelled_caught
            assert streams.merger.next_event() is None, "the other shard may have an earlier one"
        cluster.shards["b"].is_awake.set()
        assert await take(streams, 1) == [time]
        assert cluster.shards["b"].opened_at == [1], "its cursor has been read on"
        later = [cluster.write("b"), cluster.write("a")]
        assert await take(streams, 2) == later

    run(check)


def test_a_restart_that_is_cancelled_is_made_up_for() -> None:
    async def check() -> None:
        cluster = FakeCluster("a", "b")
        streams = await cluster.open_streams(1)
        shard = cluster.shards["b"]
        shard.is_awake = trio.Event()
        with trio.move_on_after(5):
            await streams.restart(get_more(), "b")
        shard.is_awake.set()
        times = [cluster.write("b"), cluster.write("a")]
        assert await take(streams, 2) == times

    run(check)
