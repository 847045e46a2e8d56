"""The merger against the simplest thing that could be right: sorting everything that will ever come."""

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from shardwright.router.change_streams.merger import Event, EventMerger
from shardwright.router.change_streams.tokens import ResumeToken
from tests.router.change_streams.tokens import mark, token

SOURCES = ("a", "b", "c")


def event(source: str, time: int) -> Event:
    return Event(source, token(time), source.encode())


def _identity(one: Event) -> tuple[str, str]:
    return one.token.data, one.source


def take_all(merger: EventMerger) -> list[Event]:
    taken = []
    while (ready := merger.next_event()) is not None:
        merger.take()
        taken.append(ready)
    return taken


@dataclass
class Shard:
    """A source whose batches have its events up to some time."""

    name: str
    times: list[int]
    read: int = 0
    promised: int = 0
    events: list[Event] = field(init=False)

    def __post_init__(self) -> None:
        self.events = [event(self.name, time) for time in sorted(self.times)]

    def batch(self, limit: int, until: int) -> tuple[list[Event], ResumeToken]:
        rest = [each for each in self.events[self.read :] if each.token.time.inc <= until]
        batch = rest[:limit]
        self.read += len(batch)
        if len(batch) < len(rest):
            return batch, batch[-1].token if batch else mark(self.promised)
        self.promised = max(self.promised, until + 1)
        return batch, mark(self.promised)


times = st.lists(st.integers(1, 30), max_size=12, unique=True)
steps = st.lists(st.tuples(st.sampled_from(SOURCES), st.integers(0, 4), st.integers(1, 40)), max_size=40)


@given(st.tuples(times, times, times), steps)
def test_events_come_once_and_in_order(all_times: tuple[list[int], ...], reads: list[tuple[str, int, int]]) -> None:
    shards = {name: Shard(name, found) for name, found in zip(SOURCES, all_times, strict=True)}
    merger = EventMerger()
    for name in SOURCES:
        merger.add(name, mark(0))
    taken: list[Event] = []
    for name, limit, until in [*reads, *[(name, 100, 50) for name in SOURCES]]:
        merger.feed(name, *shards[name].batch(limit, until))
        taken += take_all(merger)
        unread = [each.token for shard in shards.values() for each in shard.events[shard.read :]]
        assert all(each.token < token or each.token == token for each in taken for token in unread)
    assert [each.token for each in taken] == sorted(each.token for each in taken)
    everything = [each for shard in shards.values() for each in shard.events]
    assert sorted(taken, key=_identity) == sorted(everything, key=_identity)
    assert merger.held_bytes == 0


@given(st.tuples(times, times, times), steps)
def test_whoever_holds_an_event_back_is_wanted(
    all_times: tuple[list[int], ...], reads: list[tuple[str, int, int]]
) -> None:
    shards = {name: Shard(name, found) for name, found in zip(SOURCES, all_times, strict=True)}
    merger = EventMerger()
    for name in SOURCES:
        merger.add(name, mark(0))
    for name, limit, until in reads:
        merger.feed(name, *shards[name].batch(limit, until))
    take_all(merger)
    wanted = merger.wanted()
    assert wanted, "a stream never ends for lack of somebody to read"
    held_back = merger.held_back
    if held_back is not None:
        assert set(wanted) <= set(merger.behind(held_back))
        for name in wanted:
            merger.feed(name, (), mark(100))
        assert take_all(merger), "reading them is enough"


def test_a_source_may_be_added_where_the_stream_stands() -> None:
    merger = EventMerger()
    merger.add("a", mark(0))
    merger.feed("a", [event("a", 1), event("a", 5)], mark(6))
    assert [each.token.time.inc for each in take_all(merger)] == [1, 5]
    merger.add("new", mark(6))
    merger.feed("a", [event("a", 9)], mark(10))
    assert merger.next_event() is None
    merger.feed("new", [event("new", 8)], mark(12))
    assert [(each.source, each.token.time.inc) for each in take_all(merger)] == [("new", 8), ("a", 9)]


def test_the_source_that_limits_the_others() -> None:
    merger = EventMerger()
    merger.add("a", mark(3))
    merger.add("b", mark(5))
    assert merger.is_limited_by("a")
    assert not merger.is_limited_by("b")
    assert merger.newest_promise == mark(5)
    assert merger.horizon == mark(3)
