"""The statements of a batch that all shards have to execute, and which shards have done so. No I/O."""

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field

from shardwright.router.writes.batch import WriteBatch
from shardwright.router.writes.merge import combined_error
from shardwright.router.writes.outcome import BatchOutcome
from shardwright.router.writes.pending_broadcasts import PendingBroadcasts
from shardwright.router.writes.reply import WriteReply
from shardwright.router.writes.shard_batch import ShardBatch


@dataclass(slots=True)
class _Broadcast:
    """One statement: the shards that have executed it, and the errors of others."""

    done: set[str] = field(default_factory=set)
    errors: list[bytes] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class RoundConclusion:
    """The outcomes of the statements of one round.

    Attributes:
        failed: by position, with the error of each.
        reopened: the positions of those that some shard still has to execute.
    """

    failed: list[tuple[int, bytes]]
    reopened: list[int]


class Broadcasts:
    """Tracks them; a statement is identified by its position in the client's batch."""

    def __init__(self, batch: WriteBatch) -> None:
        self._batch = batch
        self._all: dict[int, _Broadcast] = {}
        self._sent: list[int] = []
        self._pending = PendingBroadcasts(batch)

    def __contains__(self, position: int) -> bool:
        return position in self._all

    @property
    def has_any(self) -> bool:
        """Whether a statement was ever sent to all shards."""
        return bool(self._all)

    @property
    def has_pending(self) -> bool:
        """Whether one of them is not settled."""
        return bool(self._pending.positions)

    def send(self, positions: deque[int], all_shards: Collection[str]) -> list[ShardBatch]:
        """Take as many statements as fit in a message, the same ones for every shard that has not executed them yet."""
        batches: dict[str, ShardBatch] = {}
        room = self._batch.statement_bytes_max
        while positions and (room >= self._batch.size_of(positions[0]) or not batches):
            position = positions.popleft()
            room -= self._batch.size_of(position)
            self._sent.append(position)
            self._pending.positions.add(position)
            done = self._all.setdefault(position, _Broadcast()).done
            for shard in all_shards:
                if shard not in done:
                    if shard not in batches:
                        batches[shard] = ShardBatch(shard, is_broadcast=True)
                    batches[shard].positions.append(position)
        return list(batches.values())

    def add(self, shard: str, positions: list[int], reply: WriteReply) -> None:
        """Keep a shard's reply to the statements at some positions."""
        self._pending.add(shard, positions, reply)

    def note_success(self, shard: str, position: int) -> None:
        """A shard has executed a statement."""
        self._all[position].done.add(shard)

    def note_error(self, position: int, document: bytes) -> None:
        """A statement has failed on a shard."""
        self._all[position].errors.append(document)

    def fail_all_sent(self, document: bytes) -> None:
        """All statements of this round have failed."""
        for position in self._sent:
            self.note_error(position, document)

    def may_have_missed(self, all_shards: Collection[str]) -> bool:
        """Whether all shards have executed the pending statements, but these may have found too little."""
        return self._pending.may_have_missed and all(
            not self._all[position].errors and self._all[position].done.issuperset(all_shards)
            for position in self._pending.positions
        )

    def repeat(self) -> None:
        """Execute the pending statements again on every shard."""
        self._pending.repeat()
        self._sent = sorted(self._pending.positions)
        for position in self._sent:
            self._all[position].done.clear()

    def conclude(self, all_shards: Collection[str]) -> RoundConclusion:
        """End a round: which statements have failed, and which a shard refused, or, as it is new, has not received."""
        conclusion = RoundConclusion([], [])
        for position in self._sent:
            broadcast = self._all[position]
            if broadcast.errors:
                self._pending.positions.discard(position)
                conclusion.failed.append((position, combined_error(broadcast.errors)))
            elif not broadcast.done.issuperset(all_shards):
                conclusion.reopened.append(position)
        self._sent = []
        return conclusion

    def settle(self, outcome: BatchOutcome) -> int:
        """Count what the shards did into the outcome of the batch; returns how many statements that concerns."""
        return self._pending.settle(outcome)
