"""A cluster in memory on which the policy's decisions are carried out, as config server and shards would.

Keys are the integers from 0; every key has one document of a given size. The first chunk begins with MinKey, the last
one ends with MaxKey, as in a collection.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import bson
from bson.max_key import MaxKey
from bson.min_key import MinKey

from shardwright.sharding.balancing.cluster_state import (
    NO_ZONE,
    Answer,
    Asking,
    Candidate,
    ChunkCounts,
    ChunksAcross,
    ClusterState,
    CollectionState,
    Decisions,
    FirstChunk,
    Move,
    Policy,
    Question,
    Result,
    Rule,
    ShardState,
    ZoneMap,
)
from shardwright.sharding.balancing.policy import choose_moves, choose_splits
from shardwright.sharding.chunks import ChunkRange
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.shard_key import ShardKeyPattern

PATTERN = ShardKeyPattern.from_mapping({"x": 1})
NAMESPACE = Namespace.parse("db.c")


def drive(asking: Asking[Result], answer: Callable[[Question], Answer]) -> Result:
    """The result of a generator of the policy."""
    try:
        question = next(asking)
        while True:
            question = asking.send(answer(question))
    except StopIteration as stop:
        result: Result = stop.value
        return result


@dataclass
class SimulatedChunk:
    """Keys from ``low`` to below ``high``, on a shard."""

    low: int
    high: int
    shard: str
    is_jumbo: bool = False


@dataclass
class World:
    """One collection on some shards.

    Attributes:
        chunks: the chunks, in order.
        document_bytes: the size of each key's document; the keys are its indices.
        zones: the ranges of zones: first key, first key after it, zone.
        policy: the quantity to even out.
        chunk_bytes_max: the chunk size.
        moved: the reason of each move of each key.
        rounds: the moves of each round.
    """

    shards: Sequence[ShardState]
    chunks: list[SimulatedChunk]
    document_bytes: Sequence[int]
    zones: Sequence[tuple[int, int, str]] = ()
    policy: Policy = Policy.DATA_SIZE
    chunk_bytes_max: int = 10
    moved: defaultdict[int, list[Rule]] = field(default_factory=lambda: defaultdict(list))
    rounds: list[list[Move]] = field(default_factory=list)

    @property
    def pattern(self) -> ShardKeyPattern:
        """The shard key."""
        return PATTERN

    @property
    def zone_map(self) -> ZoneMap:
        """The zones as the policy knows them."""
        return ZoneMap(self.pattern, [(self.bound(low), self.bound(high), zone) for low, high, zone in self.zones])

    def bound(self, key: int) -> bytes:
        """The bound of a chunk that begins at a key."""
        end = len(self.document_bytes)
        value: Any = MinKey() if key == 0 else MaxKey() if key == end else key
        return bson.encode({"x": value})

    def key_at(self, bound: bytes) -> int:
        """The key of a bound between two of them."""
        return int(bson.decode(bound)["x"])

    def candidate(self, chunk: SimulatedChunk) -> Candidate:
        """A chunk as the policy knows it."""
        return Candidate(ChunkRange.of(self.pattern, self.bound(chunk.low), self.bound(chunk.high)), chunk.shard)

    @property
    def sizes(self) -> Mapping[str, int]:
        """The bytes on each shard."""
        sizes: Counter[str] = Counter()
        for chunk in self.chunks:
            sizes[chunk.shard] += sum(self.document_bytes[chunk.low : chunk.high])
        return sizes

    @property
    def counts(self) -> Mapping[str, int]:
        """The chunks of each shard."""
        return Counter(chunk.shard for chunk in self.chunks)

    def collection(self, **changes: Any) -> CollectionState:  # noqa: ANN401 - any attribute
        """The collection as the policy knows it."""
        state = CollectionState(NAMESPACE, self.zone_map, self.sizes, self.chunk_bytes_max)
        return replace(state, **changes)

    @property
    def cluster(self) -> ClusterState:
        """The cluster as the policy knows it."""
        return ClusterState(tuple(self.shards), self.policy)

    def answer(self, question: Question) -> Answer:
        """Answer a question as the catalog would."""
        match question:
            case ChunksAcross(zones=zones):
                chunks = (self.candidate(chunk) for chunk in self.chunks)
                return Answer(tuple(each for each in chunks if zones.bounds_inside(each.range)))
            case ChunkCounts(within=within):
                return Answer(counts=Counter(chunk.shard for chunk in self.chunks if self._is_in(chunk, within)))
            case FirstChunk(shard=shard, within=within, is_movable=is_movable):
                found = (
                    chunk
                    for chunk in self.chunks
                    if chunk.shard == shard and chunk.is_jumbo is not is_movable and self._is_in(chunk, within)
                )
                first = next(found, None)
                return Answer(() if first is None else (self.candidate(first),))

    def _is_in(self, chunk: SimulatedChunk, within: Sequence[ChunkRange] | None) -> bool:
        key = self.candidate(chunk).range.min_key
        return within is None or any(each.contains_key(key) for each in within)

    def zone_of(self, key: int) -> str:
        """The zone of a key, determined without the policy."""
        return next((zone for low, high, zone in self.zones if low <= key < high), NO_ZONE)

    def decide(self) -> Decisions:
        """The splits, which are made at once, and the moves of the next round."""
        splits = drive(choose_splits([self.collection()]), self.answer)
        for split in splits.splits:
            for point in split.points:
                self.split_at(self.key_at(point))
        decisions = drive(choose_moves(self.cluster, [self.collection()]), self.answer)
        decisions.splits = splits.splits
        return decisions

    def run_round(self) -> Decisions:
        """Carry out one round."""
        decisions = self.decide()
        for move in decisions.moves:
            self.carry_out(move)
        self.rounds.append(decisions.moves)
        return decisions

    def run(self, rounds_max: int) -> int:
        """Run rounds until one has nothing to do; returns how many had."""
        for number in range(rounds_max):
            if not self.run_round().moves:
                return number
        raise AssertionError(f"not done after {rounds_max} rounds")

    def split_at(self, key: int) -> None:
        """Split the chunk that contains a key in its interior."""
        index, chunk = next((at, each) for at, each in enumerate(self.chunks) if each.low < key < each.high)
        self.chunks[index : index + 1] = [replace(chunk, high=key), replace(chunk, low=key)]

    def carry_out(self, move: Move) -> None:
        """Move a chunk, or as many of its first documents as make up one chunk size."""
        chunk = next(each for each in self.chunks if self.candidate(each) == move.chunk)
        if not move.is_whole:
            end = self._end_of_move(chunk)
            if end < chunk.high:
                self.split_at(end)
                chunk = next(each for each in self.chunks if each.low == chunk.low)
        assert chunk.shard == move.donor
        chunk.shard = move.recipient
        for key in range(chunk.low, chunk.high):
            self.moved[key].append(move.rule)

    def _end_of_move(self, chunk: SimulatedChunk) -> int:
        total = self.document_bytes[chunk.low]
        for key in range(chunk.low + 1, chunk.high):
            total += self.document_bytes[key]
            if total > self.chunk_bytes_max:
                return key
        return chunk.high
