"""One two-phase commit under way: the I/O of each step of `commit_state`."""

from collections.abc import Awaitable, Callable
from typing import Final

import trio

from shardwright.daemon.backoff import Backoff
from shardwright.daemon.until_done import until_done
from shardwright.shardd.context import fail_point_names as places
from shardwright.shardd.context.shard_context import ShardContext
from shardwright.shardd.two_phase_commit.commit_state import CommitState, Step
from shardwright.shardd.two_phase_commit.commit_times import CommitTimes
from shardwright.shardd.two_phase_commit.coordinator_documents import CoordinatorDocuments
from shardwright.shardd.two_phase_commit.decision import Commit, Decision, name_of
from shardwright.shardd.two_phase_commit.participant_link import RETRY_SECONDS, RETRY_SECONDS_MAX, ParticipantLink
from shardwright.shardd.two_phase_commit.transaction_id import TransactionId
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.logger import get_logger

logger = get_logger("shardd.two_phase_commit")

_AHEAD_SECONDS_MAX: Final = 1.0
"""How long the other participants wait for the commit on the coordinator's own shard."""


class TransactionCoordinator:
    """The coordinator of one transaction, from the request to commit until its document is deleted.

    Args:
        context: this shard daemon's context.
        identity: the transaction.
        state: of its commit.
        deadline: until when participants may vote, on trio's clock.
        is_recovered: whether a former primary began it.

    Attributes:
        identity: see above.
        state: see above.
        deadline: see above.
        is_recovered: see above.
        times: of its steps.
        ended: set when the document has been deleted.
    """

    def __init__(
        self, context: ShardContext, identity: TransactionId, state: CommitState, deadline: float, *, is_recovered: bool
    ) -> None:
        self.identity = identity
        self.state = state
        self.deadline = deadline
        self.is_recovered = is_recovered
        self.times = CommitTimes()
        self.ended = trio.Event()
        self._context = context
        self._documents = CoordinatorDocuments(context.mongod)
        self._logger = logger.bind(lsid=identity.session_id, txn_number=identity.number)
        self._links = {each: ParticipantLink(context, identity, each, self._logger) for each in state.participants}

    async def run(self) -> None:
        """Take the remaining steps. Only the end of the term prevents that; then the next primary takes them."""
        actions: dict[Step, Callable[[], Awaitable[None]]] = {
            Step.WRITING_PARTICIPANT_LIST: self._write_participant_list,
            Step.WAITING_FOR_VOTES: self._collect_votes,
            Step.WRITING_DECISION: self._write_decision,
            Step.WAITING_FOR_DECISION_ACKS: self._tell_decision,
            Step.DELETING_COORDINATOR_DOC: self._delete_document,
        }
        while self.state.step is not Step.ENDED:
            step = self.state.step
            self.times.enter(step)
            self._logger.debug("Entering a step of a two-phase commit", step=step.value)
            await actions[step]()
        self._log_end()
        self.ended.set()

    async def _write_participant_list(self) -> None:
        await self._hang(places.HANG_BEFORE_WRITING_PARTICIPANT_LIST)
        # Shards that were added recently must be known to the next primary, which may have to send them the decision.
        await self._until_done(self._context.config_times.wait_durable)
        await self._until_done(self._save(places.HANG_BEFORE_WAITING_FOR_PARTICIPANT_LIST_WRITE_CONCERN))
        self.state.participant_list_written()

    async def _collect_votes(self) -> None:
        """Ask all participants at once, until the first of them votes to abort, or the time is over."""
        with trio.CancelScope(deadline=self.deadline):
            async with trio.open_nursery() as nursery:
                for shard, link in self._links.items():
                    nursery.start_soon(self._ask_vote, shard, link, nursery.cancel_scope)
        self.state.expire()

    async def _ask_vote(self, shard: str, link: ParticipantLink, others: trio.CancelScope) -> None:
        await self._hang(places.HANG_BEFORE_SENDING_PREPARE)
        self.state.vote(shard, await link.vote())
        if self.state.decision is not None:
            others.cancel()

    async def _write_decision(self) -> None:
        await self._hang(places.HANG_BEFORE_WRITING_DECISION)
        await self._until_done(self._save(places.HANG_BEFORE_WAITING_FOR_DECISION_WRITE_CONCERN))
        self.state.decision_written()

    async def _tell_decision(self) -> None:
        decision = self.state.decision
        assert decision is not None
        if isinstance(decision, Commit):
            await self._hang(places.HANG_BEFORE_SENDING_COMMIT)
            await self._commit_here_first(decision)
        else:
            await self._hang(places.HANG_BEFORE_SENDING_ABORT)
        async with trio.open_nursery() as nursery:
            for shard, link in self._links.items():
                nursery.start_soon(self._tell, shard, link, decision)

    async def _commit_here_first(self, decision: Commit) -> None:
        """Commit on this shard a moment before the others, if it can, so that the others' commits have later times.

        A document that moves away from here is then deleted before it is inserted, for change streams too.
        """
        here = self._context.require_identity().shard_name
        if here in self._links:
            with trio.move_on_after(_AHEAD_SECONDS_MAX):
                await self._links[here].commit_ahead(decision)

    async def _tell(self, shard: str, link: ParticipantLink, decision: Decision) -> None:
        await link.tell(decision)
        self.state.acknowledge(shard)

    async def _delete_document(self) -> None:
        await self._hang(places.HANG_BEFORE_DELETING_COORDINATOR_DOC)
        await self._until_done(lambda: self._documents.remove(self.identity))
        await self._hang(places.HANG_AFTER_DELETING_COORDINATOR_DOC)
        self.state.document_deleted()

    def _save(self, place: str) -> Callable[[], Awaitable[None]]:
        """A function that writes the document; at the fail point it is written, but perhaps not on a majority."""

        async def save() -> None:
            if self._context.fail_points.is_any_on:
                await self._documents.save(self.identity, self.state, is_durable=False)
                await self._hang(place)
            await self._documents.save(self.identity, self.state)

        return save

    async def _hang(self, place: str) -> None:
        await self._context.fail_points.hang_while(place)

    async def _until_done(self, action: Callable[[], Awaitable[None]]) -> None:
        await until_done(action, Backoff(RETRY_SECONDS, RETRY_SECONDS_MAX), self._log_failure)

    def _log_failure(self, error: BackendError | CommandError, retry_seconds: float) -> None:
        self._logger.warning(
            "Repeating a write of a two-phase commit",
            step=self.state.step.value,
            error=str(error),
            retry_seconds=round(retry_seconds, 3),
        )

    def _log_end(self) -> None:
        is_slow = self.times.total_seconds * 1000 >= self._context.options.slow_ms
        log = self._logger.info if is_slow or self.is_recovered else self._logger.debug
        log(
            "Completed a two-phase commit",
            decision=name_of(self.state.decision),
            participants=len(self.state.participants),
            is_recovered=self.is_recovered,
            durations=self.times.durations,
        )
