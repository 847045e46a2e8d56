"""Auto-splitting on a shard's primary: counts the bytes written to each chunk, and splits chunks that have grown.

The counts live in memory, as in MongoDB: a new primary begins with none. Writers only add up bytes (`ByteSampler`). All
other work happens in tasks of the term, one per chunk at a time.

Bytes are attributed to chunks by samples, so that most writes cost an addition and a comparison. The bytes written to a
collection are divided into windows of equal length. From each window one byte is chosen at random, and the chunk that
it was written to is credited with the whole window. Whatever the order of writes, each chunk is credited on average
with exactly the bytes written to it. The total of all chunks is always exact.
"""

from collections.abc import Iterator
from random import Random
from typing import Final

import trio

from shardwright.shardd.context.shard_context import ShardContext
from shardwright.shardd.metadata.namespace_state import NamespaceState
from shardwright.shardd.splitting.chunk_splitter import ChunkBounds, ChunkBytes, ChunkSplitter, Outcome, bounds_of
from shardwright.shardd.splitting.growth import SplitParameters, SplitSettings, WrittenKeys, grown_bytes
from shardwright.sharding.routing_table import RoutingTable, ShardedCollection
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.logger import get_logger
from shardwright.wire.request import Request


class ByteSampler:
    """The bytes written to one collection.

    Attributes:
        window_bytes: the length of the windows that begin from now on.
        next: the number, from 0, of the next chosen byte.
    """

    __slots__ = ("_end", "_random", "_weight", "next", "total", "window_bytes")

    def __init__(self, window_bytes: int, random: Random) -> None:
        self.window_bytes = window_bytes
        self.total = 0
        self._random = random
        self._end = 0
        self._begin_window()

    def samples(self, size: int) -> Iterator[tuple[float, int]]:
        """Yield the position, from 0 up to 1, and window length of each chosen byte among the last ``size``."""
        before = self.total - size
        while self.next < self.total:
            yield (self.next - before) / size, self._weight
            self._begin_window()

    def _begin_window(self) -> None:
        self._weight = self.window_bytes
        self.next = self._end + self._random.randrange(self._weight)
        self._end += self._weight


logger = get_logger("shardd.splitting")

SETTINGS_SECONDS_MAX: Final = 10.0
"""Maximum age of the cached settings used to select chunks; each split reads them again."""

RETRY_SECONDS: Final = 10.0
"""Delay between a failed split and the next attempt at the same chunk."""

SPLITS_AT_ONCE: Final = 4

_WINDOWS_PER_THRESHOLD: Final = 64
_WINDOW_BYTES_MAX: Final = 1 << 16
_FIRST_WINDOW_BYTES: Final = 1 << 12
"""Window limits: with 64 samples and more, a chunk's count hardly ever deviates by a quarter from the bytes written.

Until the settings have been read, windows are short, because the threshold may be low.
"""

_SAMPLES_MAX: Final = 1 << 14
"""Maximum number of samples of one request, because an update of many documents may count with any size."""


class _Growing:
    """The bytes written to one incarnation of a collection."""

    __slots__ = ("collection", "counts", "sampler")

    def __init__(self, collection: ShardedCollection, sampler: ByteSampler) -> None:
        self.collection = collection
        self.sampler = sampler
        self.counts = ChunkBytes()


class AutoSplitter:
    """Automatic splits of this shard's chunks as they grow."""

    def __init__(self, context: ShardContext, splitter: ChunkSplitter, random: Random) -> None:
        self.parameters = SplitParameters()
        self._context = context
        self._splitter = splitter
        self._random = random
        self._settings = SplitSettings()
        self._read_at: float | None = None
        self._growing: dict[str, _Growing] = {}
        self._due: dict[tuple[str, ChunkBounds], None] = {}
        self._in_progress: set[tuple[str, ChunkBounds]] = set()
        self._resting = 0
        self._is_active = False
        self._is_looking = False
        self._wanted = trio.Event()
        self._waiters = trio.lowlevel.ParkingLot()
        self._results = context.metrics.labelled_counter(
            "auto_splits",
            "Attempts to split a chunk that has grown, by their result",
            "result",
            ("failed", *(each.value for each in Outcome)),
        )

    # Counting

    def observe(self, request: Request, reply: bytes | None, state: NamespaceState, table: RoutingTable) -> None:
        """Count the bytes that an operation has written to a sharded collection.

        Args:
            request: the operation, as admitted.
            reply: mongod's reply frame; None if the client wanted none.
        """
        if not self._is_active or not self.parameters.is_enabled:
            return
        size = grown_bytes(request, reply)
        if not size:
            return
        growing = self._growing.get(state.namespace)
        if growing is None or growing.collection is not table.collection:
            growing = self._follow(growing, table.collection)
        sampler = growing.sampler
        sampler.total += size
        if sampler.total > sampler.next:
            self._sample(growing, request, size, state, table)

    def adds(self, size: int, state: NamespaceState, table: RoutingTable) -> bool:
        """Count a write of the given size (`grown_bytes`) if an addition suffices; False if `observe` is needed."""
        if not size or not self._is_active or not self.parameters.is_enabled:
            return True
        growing = self._growing.get(state.namespace)
        if growing is None or growing.collection is not table.collection:
            return False
        if growing.sampler.total + size > growing.sampler.next:
            return False
        growing.sampler.total += size
        return True

    def _follow(self, growing: _Growing | None, collection: ShardedCollection) -> _Growing:
        """Update a collection's attributes; another incarnation begins with new counts."""
        if growing is None or growing.collection.timestamp != collection.timestamp:
            growing = _Growing(collection, ByteSampler(self._window_bytes(collection), self._random))
            self._growing[str(collection.namespace)] = growing
        growing.collection = collection
        growing.sampler.window_bytes = self._window_bytes(collection)
        return growing

    def _sample(
        self, growing: _Growing, request: Request, size: int, state: NamespaceState, table: RoutingTable
    ) -> None:
        growing.sampler.window_bytes = max(self._window_bytes(table.collection), size // _SAMPLES_MAX)
        threshold = self._threshold(table.collection)
        keys = WrittenKeys(request, table.key_pattern, table.collection.time_series)
        for position, weight in growing.sampler.samples(size):
            key = keys.at(position)
            if key is not None:
                chunk = table.chunk_for_key(key)
            elif owned := table.chunk_count_of(state.shard):
                # An update that does not fix the shard key may concern any document.
                chunk = table.owned_chunk(state.shard, self._random.randrange(owned))
            else:
                continue
            bounds = bounds_of(chunk)
            if growing.counts.add(bounds, weight) >= threshold:
                self._due[state.namespace, bounds] = None
        if self._due or self._are_settings_old():
            self._wanted.set()

    def _threshold(self, collection: ShardedCollection) -> int:
        size = collection.max_chunk_size_bytes or self._settings.chunk_bytes_max
        return max(1, int(size * self.parameters.growth_fraction))

    def _window_bytes(self, collection: ShardedCollection) -> int:
        if self._read_at is None:
            return _FIRST_WINDOW_BYTES
        return min(max(1, self._threshold(collection) // _WINDOWS_PER_THRESHOLD), _WINDOW_BYTES_MAX)

    def _are_settings_old(self) -> bool:
        return self._read_at is None or trio.current_time() - self._read_at > SETTINGS_SECONDS_MAX

    # Splitting

    async def begin_term(self, term: int, nursery: trio.Nursery) -> None:
        """Start counting writes and splitting chunks."""
        self._is_active = True
        nursery.start_soon(self._run)

    def end_term(self) -> None:
        """Discard the counts; running splits were cancelled with the term's nursery."""
        self._is_active = False
        self._growing.clear()
        self._due.clear()
        self._in_progress.clear()
        self._resting = 0
        self._is_looking = False
        self._read_at = None
        self._waiters.unpark_all()

    async def wait_idle(self) -> None:
        """Wait until no grown chunk is waiting for a split or being split, or until the term ends.

        A failed split that will be repeated is ignored.
        """
        while self._is_active and self._is_busy:
            await self._waiters.park()

    @property
    def _is_busy(self) -> bool:
        is_to_look = self._is_looking or bool(self._due) or self._wanted.is_set()
        return is_to_look or len(self._in_progress) > self._resting

    async def _run(self) -> None:
        limiter = trio.CapacityLimiter(SPLITS_AT_ONCE)
        async with trio.open_nursery() as nursery:
            while True:
                await self._wanted.wait()
                self._wanted = trio.Event()
                self._is_looking = True
                if self._are_settings_old():
                    await self._read_settings()
                for namespace, chunk in list(self._due):
                    if (namespace, chunk) not in self._in_progress:
                        self._in_progress.add((namespace, chunk))
                        nursery.start_soon(self._split, namespace, chunk, limiter)
                self._due.clear()
                self._is_looking = False
                self._waiters.unpark_all()

    async def _read_settings(self) -> None:
        """Read the settings, and if they have changed, look again for chunks that have grown.

        Invalid or unreadable settings leave the former ones in force.
        """
        self._read_at = trio.current_time()
        try:
            settings = await SplitSettings.read(await self._context.catalog())
        except (CommandError, BackendError) as error:
            logger.warning("Could not read the settings of auto-splitting", error=str(error))
            return
        if settings == self._settings:
            return
        self._settings = settings
        for namespace, growing in self._growing.items():
            for chunk in growing.counts.reaching(self._threshold(growing.collection)):
                self._due[namespace, chunk] = None
        if self._due:
            self._wanted.set()

    async def _split(self, namespace: str, chunk: ChunkBounds, limiter: trio.CapacityLimiter) -> None:
        try:
            async with limiter:
                await self._attempt(namespace, chunk)
        except (CommandError, BackendError) as error:
            self._results.add("failed")
            logger.warning("A chunk that has grown could not be split", namespace=namespace, error=str(error))
            self._resting += 1
            self._waiters.unpark_all()
            await trio.sleep(RETRY_SECONDS)
            self._resting -= 1
        finally:
            self._in_progress.discard((namespace, chunk))
            self._waiters.unpark_all()

    async def _attempt(self, namespace: str, chunk: ChunkBounds) -> None:
        """Split a chunk, and restart its count at 0; if that fails, the former count is restored."""
        growing = self._growing.get(namespace)
        count = 0 if growing is None else growing.counts.take(chunk)
        try:
            await self._read_settings()
            outcome = await self._splitter.split(namespace, chunk, self._settings)
        except (CommandError, BackendError):
            if growing is not None:
                growing.counts.add(chunk, count)
            raise
        self._results.add(outcome.value)
        if outcome is not Outcome.SPLIT:
            logger.debug("A chunk that has grown was not split", namespace=namespace, why=outcome.value)
