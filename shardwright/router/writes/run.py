"""The course of one batch: the messages of each round, and the outcome of every statement. No I/O.

A round has at most one message for each shard, all sent at once. In each round an ordered batch sends the longest run
of statements for one shard; it ends at the first error. An unordered batch sends all it can. A statement that a shard
refused because of a stale version stays open for a later round.

**Broadcasts.** A broadcast can miss a document that migrates during it: the recipient executes the statement before the
commit of the migration, and the donor after it. The shards' replies are therefore kept until it is certain that no
document was missed. If a statement found nothing and the placement has changed since it was sent, it is sent again.
That is safe: a statement that found nothing did nothing, and in a retryable write the shards recognize the others and
repeat their replies.
"""

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Final

from shardwright.router.writes.batch import STATEMENT_ID_BYTES_MAX, WriteBatch
from shardwright.router.writes.outcome import BatchOutcome, WriteReply, combined_error, error_document, move_refused
from shardwright.router.writes.targeted_batch import ShardBatch
from shardwright.sharding.targeting.writes import ALL_SHARDS, Destination
from shardwright.wire.error_codes import Category, ErrorCode, has_category
from shardwright.wire.errors import CommandError

REPEATS_MAX: Final = 4
"""Maximum number of repetitions, each after another change of placement."""

ROUNDS_WITHOUT_PROGRESS_MAX: Final = 5
"""MongoDB's ``kMaxRoundsWithoutProgress``."""


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


class WriteRun:
    """The state of a batch between its rounds.

    Attributes:
        refusals: the codes of stale routing errors in the last round.
        settled: the number of statements that have succeeded or failed.
    """

    def __init__(self, batch: WriteBatch) -> None:
        self._batch = batch
        self._open = deque(range(len(batch.statements)))
        self._is_stopped = False
        self._broadcasts = Broadcasts(batch)
        self._outcome = BatchOutcome(batch)
        self._reopened: list[int] = []
        self._rounds = 0
        self._rounds_without_progress = 0
        self._settled_before = 0
        self.settled = 0
        self.refusals: set[int] = set()

    @property
    def is_finished(self) -> bool:
        """Whether nothing remains to be sent."""
        return self._is_stopped or not self._open

    @property
    def has_broadcasts(self) -> bool:
        """Whether a statement was sent to all shards.

        It remains a broadcast even if it now has a single target: a shard that has executed it does not get it again.
        """
        return self._broadcasts.has_any

    @property
    def has_pending_broadcasts(self) -> bool:
        """Whether a broadcast statement is not settled."""
        return self._broadcasts.has_pending

    # What to send

    def next_round(self, destinations: Sequence[Destination], all_shards: Collection[str]) -> list[ShardBatch]:
        """Take the statements that can be sent now, by their destinations; none if they cannot be targeted."""
        self._rounds += 1
        self.refusals = set()
        return (
            self._ordered_round(destinations, all_shards)
            if self._batch.is_ordered
            else self._unordered_round(destinations, all_shards)
        )

    def whole_round(self, shard: str) -> ShardBatch:
        """Take all statements for one shard, to be sent in the client's own message."""
        self._rounds += 1
        batch = ShardBatch(shard, is_broadcast=False, positions=self._open)
        self._open.clear()
        return batch

    def _ordered_round(self, destinations: Sequence[Destination], all_shards: Collection[str]) -> list[ShardBatch]:
        """Take the longest run of statements for the first one's shard; a statement for several shards goes alone."""
        first = self._destination(self._open[0], destinations)
        if isinstance(first, CommandError):
            self._fail(self._open.popleft(), error_document(first))
            return []
        if not isinstance(first, str):
            return self._broadcasts.send(deque([self._open.popleft()]), all_shards)
        batch = ShardBatch(first, is_broadcast=False)
        room = self._batch.statement_bytes_max
        waiting = self._open
        while waiting and self._destination(waiting[0], destinations) == first:
            room -= self._batch.size_of(waiting[0])
            if room < 0 and batch.positions:
                break
            batch.positions.append(waiting.popleft())
        return [batch]

    def _unordered_round(self, destinations: Sequence[Destination], all_shards: Collection[str]) -> list[ShardBatch]:
        """Take all statements with a single shard or, when none are left, the broadcast statements."""
        batches: dict[str, ShardBatch] = {}
        rooms: dict[str, int] = {}
        broadcasts: deque[int] = deque()
        waiting: deque[int] = deque()
        statements = self._batch.statements
        for position in self._open:
            destination = self._destination(position, destinations)
            if isinstance(destination, str):
                batch = batches.get(destination)
                if batch is None:
                    batch = batches[destination] = ShardBatch(destination, is_broadcast=False)
                    rooms[destination] = self._batch.statement_bytes_max
                size = len(statements[position]) + STATEMENT_ID_BYTES_MAX
                if size > rooms[destination] and batch.positions:
                    rooms[destination] = 0  # later statements must not overtake one without room
                    waiting.append(position)
                else:
                    rooms[destination] -= size
                    batch.positions.append(position)
            elif isinstance(destination, CommandError):
                self._fail(position, error_document(destination))
            else:
                broadcasts.append(position)
        found = list(batches.values()) or self._broadcasts.send(broadcasts, all_shards)
        self._open = waiting
        self._open.extend(broadcasts)
        return found

    def _destination(self, position: int, destinations: Sequence[Destination]) -> Destination:
        return ALL_SHARDS if position in self._broadcasts else destinations[position]

    # The replies

    def record(self, batch: ShardBatch, reply: WriteReply) -> None:
        """Record a shard's reply."""
        counts = self._broadcasts if batch.is_broadcast else self._outcome
        counts.add(batch.shard, batch.positions, reply)
        if not reply.errors and not batch.is_broadcast:
            self.settled += len(batch.positions)
            return
        failed = {error.index: error for error in reply.errors}
        executed = batch.positions
        if self._batch.is_ordered and failed:
            first = min(failed)
            executed = executed[: first + 1]
            if is_routing_refusal(failed[first].code):
                self._reopened += batch.positions[first + 1 :]
        for index, position in enumerate(executed):
            error = failed.get(index)
            if error is None:
                self._note_success(batch, position)
            elif is_routing_refusal(error.code):
                self._note_refusal(batch, position, error.code)
            else:
                self._note_error(batch, position, error.code, error.document)

    def record_failure(self, batch: ShardBatch, error: CommandError) -> None:
        """Record that a shard executed none of its statements, or may not have."""
        if is_routing_refusal(error.code):
            for position in batch.positions:
                self._note_refusal(batch, position, error.code)
            return
        document = error_document(error)
        for position in batch.positions[:1] if self._batch.is_ordered else batch.positions:
            self._note_error(batch, position, error.code, document)

    def record_missed_shards(self, error: CommandError) -> None:
        """Record that the broadcasts just sent may also concern shards that the router did not know."""
        self._broadcasts.fail_all_sent(error_document(error))

    def may_have_missed(self, all_shards: Collection[str]) -> bool:
        """Whether statements executed by all shards may have missed documents; if so, call `repeat_broadcasts`.

        They have missed none if the placement has not changed since they were sent.
        """
        return self._broadcasts.may_have_missed(all_shards)

    def repeat_broadcasts(self) -> None:
        """Send the broadcasts that all shards have executed once more."""
        self._broadcasts.repeat()

    def end_round(self, namespace: str, all_shards: Collection[str]) -> None:
        """Evaluate a round once all its shards have answered; ``all_shards`` is ignored if it had no broadcasts."""
        conclusion = self._broadcasts.conclude(all_shards)
        for position, document in conclusion.failed:
            self._fail(position, document)
        self._reopened += conclusion.reopened
        if not conclusion.reopened:
            self.settled += self._broadcasts.settle(self._outcome)
        self._open.extendleft(sorted(self._reopened, reverse=True))
        self._reopened = []
        self._rounds_without_progress = 0 if self.settled > self._settled_before else self._rounds_without_progress + 1
        self._settled_before = self.settled
        if self._rounds_without_progress > ROUNDS_WITHOUT_PROGRESS_MAX and not self.is_finished:
            self.fail_rest(
                CommandError(
                    ErrorCode.NoProgressMade,
                    f"no progress was made executing batch write op in {namespace} after "
                    f"{ROUNDS_WITHOUT_PROGRESS_MAX} rounds ({self.settled} ops completed in {self._rounds} "
                    "rounds total)",
                )
            )

    def reply(self) -> dict[str, Any]:
        """Build the reply of the finished batch, without the fields of every reply."""
        self._broadcasts.settle(self._outcome)
        return self._outcome.reply()

    def fail_rest(self, error: CommandError) -> None:
        """Fail the statements that are still open."""
        document = error_document(error)
        while self._open and not self._is_stopped:
            self._fail(self._open.popleft(), document)

    def _note_success(self, batch: ShardBatch, position: int) -> None:
        if batch.is_broadcast:
            self._broadcasts.note_success(batch.shard, position)
        else:
            self.settled += 1

    def _note_refusal(self, batch: ShardBatch, position: int, code: int) -> None:
        self.refusals.add(code)
        if not batch.is_broadcast:
            self._reopened.append(position)

    def _note_error(self, batch: ShardBatch, position: int, code: int, document: bytes) -> None:
        if code == ErrorCode.WouldChangeOwningShard:
            document = error_document(move_refused(len(self._batch.statements)))
        if batch.is_broadcast:
            self._broadcasts.note_error(position, document)
        else:
            self._fail(position, document)

    def _fail(self, position: int, document: bytes) -> None:
        self.settled += 1
        self._outcome.errors[position] = document
        if self._batch.is_ordered:
            self._is_stopped = True


def is_routing_refusal(code: int) -> bool:
    """Whether an error means that the router's routing is stale and nothing was executed."""
    return code == ErrorCode.ShardNotFound or has_category(code, Category.STALE_ROUTING)
