"""Merging the change streams of all shards in the order of their resume tokens. No I/O.

With each batch a source *promises* a token: later events of the source sort after it. An event may be returned once all
sources have promised its token or a later one. Until then, the other sources *hold it back*. The smallest promise is
the *horizon*.

Events of two sources may have the same token. All but the first of them then receive a distinct one
(`ResumeToken.repeated`), so that a stream resumed after one of them continues with the next.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from typing import Final

from shardwright.router.change_streams.tokens import ResumeToken
from shardwright.wire.rawbson import find, with_value

_OBJECT_BYTES: Final = 400
"""Memory overhead of an event: its object, its token and the token's string."""


@dataclass(frozen=True, slots=True)
class Event:
    """An event of one source.

    Attributes:
        document: the raw event, without its ``$sortKey``.
    """

    source: str
    token: ResumeToken
    document: bytes


class _Source:
    __slots__ = ("events", "promise")

    def __init__(self, promise: ResumeToken) -> None:
        self.events: deque[Event] = deque()
        self.promise = promise


class EventMerger:
    """Merges any number of sources, which may be added at any time.

    Attributes:
        held_bytes: memory used by events that were fed and not taken yet.
    """

    def __init__(self) -> None:
        self._sources: dict[str, _Source] = {}
        # For each source with events: the token of its first one, and its name.
        self._heads: list[tuple[str, str]] = []
        self._horizon: ResumeToken | None = None
        # The token of the event taken last, first as received from its source, then as returned.
        self._taken: tuple[ResumeToken, ResumeToken] | None = None
        self.held_bytes = 0

    def add(self, source: str, promise: ResumeToken) -> None:
        """Add a source without events."""
        assert source not in self._sources
        self._sources[source] = _Source(promise)
        self._horizon = None

    def feed(self, source: str, events: Sequence[Event], promise: ResumeToken) -> None:
        """Add the next events of a source and its new promise."""
        fed = self._sources[source]
        if events:
            if not fed.events:
                heappush(self._heads, (events[0].token.data, source))
            fed.events.extend(events)
            self.held_bytes += sum(len(event.document) + _OBJECT_BYTES for event in events)
        if promise > fed.promise:
            fed.promise = promise
            self._horizon = None

    @property
    def horizon(self) -> ResumeToken:
        """The smallest promise: all events up to it have been fed."""
        if self._horizon is None:
            self._horizon = min(source.promise for source in self._sources.values())
        return self._horizon

    def next_event(self) -> Event | None:
        """Return the next event without removing it; None if the next one is not determined yet."""
        if not self._heads:
            return None
        token, source = self._heads[0]
        return self._distinguished(self._sources[source].events[0]) if token <= self.horizon.data else None

    def take(self) -> None:
        """Remove the event that `next_event` returns."""
        _, name = heappop(self._heads)
        source = self._sources[name]
        event = source.events.popleft()
        self._taken = event.token, self._distinguished(event).token
        self.held_bytes -= len(event.document) + _OBJECT_BYTES
        if source.events:
            heappush(self._heads, (source.events[0].token.data, name))

    def _distinguished(self, event: Event) -> Event:
        """Return the event, with a distinct token if the event taken last had the same token."""
        if self._taken is None or self._taken[0] != event.token:
            return event
        token = self._taken[1].repeated()
        own_id = find(event.document, b"_id") if token != event.token else None
        if own_id is None:
            return event
        return replace(event, token=token, document=with_value(event.document, own_id, token.raw))

    @property
    def has_events(self) -> bool:
        """Whether any event is held, including events that are held back."""
        return bool(self._heads)

    @property
    def held_back(self) -> ResumeToken | None:
        """The token of the first event if it may not be returned yet, else None."""
        if not self._heads or self._heads[0][0] <= self.horizon.data:
            return None
        return self._sources[self._heads[0][1]].events[0].token

    def wanted(self) -> list[str]:
        """Return the sources to read next: those that hold an event back, or else all without events."""
        held_back = self.held_back
        return [
            name
            for name, source in self._sources.items()
            if not source.events and (held_back is None or source.promise < held_back)
        ]

    def promise_of(self, source: str) -> ResumeToken:
        """Return the latest promise of a source."""
        return self._sources[source].promise

    def is_behind(self, source: str, token: ResumeToken) -> bool:
        """Whether a source holds back an event with a token."""
        return self._sources[source].promise < token

    def behind(self, token: ResumeToken) -> list[str]:
        """Return the sources that hold back an event with a token."""
        return [name for name in self._sources if self.is_behind(name, token)]

    def is_limited_by(self, source: str) -> bool:
        """Whether a source's promise alone determines the horizon."""
        promise = self._sources[source].promise
        return all(promise < other.promise for name, other in self._sources.items() if name != source)

    @property
    def newest_promise(self) -> ResumeToken:
        """The largest token promised by any source."""
        return max(source.promise for source in self._sources.values())
