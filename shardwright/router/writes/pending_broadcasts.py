"""The shards' replies to broadcast statements, kept until it is certain that no document was missed. No I/O.

A document on its way from one shard to another can be missed: its new owner was asked before the move was committed and
its old one after it. So if a statement found nothing, and the placement has changed since it was sent, it is sent
again. A statement that found nothing has done nothing; in a retryable write the shards recognize the others and repeat
their replies.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain
from typing import Final

from shardwright.router.writes.batch import WriteBatch
from shardwright.router.writes.outcome import BatchOutcome
from shardwright.router.writes.reply import WriteReply

REPEATS_MAX: Final = 4
"""How often statements are resent, each time because of another change of placement."""


class PendingBroadcasts:
    """The statements that were sent to all shards and are not settled, with the replies to them.

    Attributes:
        positions: of the statements that did not fail, in the client's batch.
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
        """Forget the replies, as all the statements are sent again."""
        if self._known_ids is None:
            self._known_ids = set(self._retried_ids())
        self._repeats += 1
        self._replies.clear()

    def settle(self, outcome: BatchOutcome) -> int:
        """Count the replies into the outcome of the batch; returns how many statements that concerns."""
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
        """The replies, each statement counted once, as each concerns one document.

        If a statement was executed before a move, both its executor and the recipient of the session history report it;
        if it was executed in this very round, the executor counts it and the recipient reports it as retried.
        """
        counted: set[int] = set()
        room = len({position for _, positions, _ in self._replies for position in positions})
        for shard, positions, reply in self._replies:
            ids = reply.retried_statement_ids
            again = sum(each in counted for each in ids)
            # The client is shown as retried only the statements that had been executed when it sent the batch.
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
