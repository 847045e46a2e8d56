"""Broadcast statements of a batch: the shards that have executed each, and when to send it again. No I/O.

A broadcast can miss a document that migrates during it: the recipient executes the statement before the commit of the
migration, and the donor after it. The shards' replies are therefore kept until it is certain that no document was
missed. If a statement found nothing and the placement has changed since it was sent, it is sent again. That is safe: a
statement that found nothing did nothing, and in a retryable write the shards recognize the others and repeat their
replies.
"""

from collections import deque
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Final

from shardwright.router.writes.batch import WriteBatch
from shardwright.router.writes.messages import ShardBatch
from shardwright.router.writes.outcome import BatchOutcome, WriteReply, combined_error

REPEATS_MAX: Final = 4
"""Maximum number of repetitions, each after another change of placement."""


class PendingBroadcasts:
    """Unsettled broadcast statements and the replies to them.

    ``positions`` has the statements that did not fail, by position in the client's batch.
    """

    def __init__(self, batch: WriteBatch) -> None:
        self.positions: set[int] = set()
        self._batch = batch
        self._replies: list[tuple[str, list[int], WriteReply]] = []
        self._repeats = 0
        self._known_ids: set[int] | None = None

    def add(self, shard: str, positions: list[int], reply: WriteReply) -> None:
        """Keep a shard's reply to the statements at some positions."""
        self._replies.append((shard, positions, reply))

    @property
    def may_have_missed(self) -> bool:
        """Whether a statement found nothing on any shard, and all can safely be sent again."""
        if self._repeats == REPEATS_MAX or not self.positions:
            return False
        found = sum(reply.n for _, _, reply in self._replies)
        return found == 0 or (self._batch.is_repeatable and found < len(self.positions))

    def repeat(self) -> None:
        """Drop the replies before all the statements are sent again."""
        if self._known_ids is None:
            self._known_ids = set(self._retried_ids())
        self._repeats += 1
        self._replies.clear()

    def settle(self, outcome: BatchOutcome) -> int:
        """Count the replies into the outcome of the batch; returns the number of statements settled."""
        has_retried = next(self._retried_ids(), None) is not None
        replies = self._without_duplicates() if has_retried else self._replies
        for shard, positions, reply in replies:
            outcome.add(shard, positions, reply)
        settled = len(self.positions)
        self.positions.clear()
        self._replies = []
        self._repeats = 0
        self._known_ids = None
        return settled

    def _without_duplicates(self) -> Iterable[tuple[str, list[int], WriteReply]]:
        """Yield the replies with each statement counted once, as each affects one document.

        If a statement was executed before a migration, both its executor and the recipient of the session history
        report it. If it was executed in this round, the executor counts it and the recipient reports it as retried.
        """
        counted: set[int] = set()
        room = len({position for _, positions, _ in self._replies for position in positions})
        for shard, positions, reply in self._replies:
            ids = reply.retried_statement_ids
            again = sum(each in counted for each in ids)
            # Show the client only retries of statements that had been executed when it sent the batch.
            shown = tuple(
                each for each in ids if each not in counted and (self._known_ids is None or each in self._known_ids)
            )
            counted.update(ids)
            n = min(reply.n - again, room)
            room -= n
            modified = min(max(0, reply.modified - again), n)
            yield shard, positions, replace(reply, n=n, modified=modified, retried_statement_ids=shown)

    def _retried_ids(self) -> Iterator[int]:
        return chain.from_iterable(reply.retried_statement_ids for _, _, reply in self._replies)


@dataclass(slots=True)
class _Broadcast:
    """One statement: the shards that have executed it, and the errors of others."""

    done: set[str] = field(default_factory=set)
    errors: list[bytes] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class RoundConclusion:
    """The outcomes of the statements of one round.

    Attributes:
        failed: position and error of each failed statement.
        reopened: the positions of statements that some shard still has to execute.
    """

    failed: list[tuple[int, bytes]]
    reopened: list[int]


class Broadcasts:
    """All broadcast statements of a batch, by position in the client's batch."""

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
        """Whether a broadcast statement is not settled."""
        return bool(self._pending.positions)

    def send(self, positions: deque[int], all_shards: Collection[str]) -> list[ShardBatch]:
        """Take as many statements as fit in a message, the same for every shard that has not executed them yet."""
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
        """Note that a shard has executed a statement."""
        self._all[position].done.add(shard)

    def note_error(self, position: int, document: bytes) -> None:
        """Note that a statement has failed on a shard."""
        self._all[position].errors.append(document)

    def fail_all_sent(self, document: bytes) -> None:
        """Fail all statements of this round."""
        for position in self._sent:
            self.note_error(position, document)

    def may_have_missed(self, all_shards: Collection[str]) -> bool:
        """Whether all shards have executed the pending statements, but may have missed documents."""
        return self._pending.may_have_missed and all(
            not self._all[position].errors and self._all[position].done.issuperset(all_shards)
            for position in self._pending.positions
        )

    def repeat(self) -> None:
        """Mark the pending statements for execution on every shard again."""
        self._pending.repeat()
        self._sent = sorted(self._pending.positions)
        for position in self._sent:
            self._all[position].done.clear()

    def conclude(self, all_shards: Collection[str]) -> RoundConclusion:
        """End a round: find failed statements, and statements that a shard refused or, being new, did not receive."""
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
        """Count the shards' results into the outcome of the batch; returns the number of statements settled."""
        return self._pending.settle(outcome)
