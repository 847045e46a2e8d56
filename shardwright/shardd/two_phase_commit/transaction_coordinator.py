"""The coordinator of one two-phase commit: its document, its commands to participants, and the I/O of each step.

`CommitState` decides the next step and `TransactionCoordinator` takes it. A step is repeated until it succeeds or the
term ends; then the next primary resumes from the document.

The document is written as a write of the term, which mongod refuses in a later term. So a daemon that was paused during
a failover decides nothing.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import trio

from shardwright.daemon.backoff import Backoff, until_done
from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.shardd.context import fail_point_names as places
from shardwright.shardd.context.shard_context import ShardContext, send_to_shard
from shardwright.shardd.local_mongod.local_collections import LOCAL_WRITE_CONCERN, MAJORITY, ConfigCollection
from shardwright.shardd.two_phase_commit.commit_state import (
    Commit,
    CommitState,
    CommitTimes,
    Decision,
    Step,
    TransactionId,
    Vote,
    is_acknowledged,
    name_of,
    vote_of,
)
from shardwright.sharding.clock import signed_cluster_time
from shardwright.sharding.transaction_protocol import COORDINATED_BY
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.logger import Logger, get_logger

_COLLECTION: Final = "transaction_coordinators"


class CoordinatorDocuments:
    """The collection with the documents of all coordinators of this shard.

    All methods raise CommandError if mongod refuses or is not primary, and BackendError if it does not answer.
    """

    def __init__(self, mongod: LocalMongod) -> None:
        self._collection = ConfigCollection(mongod, _COLLECTION)

    async def all(self) -> list[dict[str, Any]]:
        """Return all documents."""
        return await self._collection.all()

    async def save(self, identity: TransactionId, state: CommitState, *, is_durable: bool = True) -> None:
        """Write the document of a commit; if `is_durable`, return only when a majority of the set has it."""
        concern = MAJORITY if is_durable else LOCAL_WRITE_CONCERN
        document = {"_id": identity.to_document(), **state.to_fields()}
        await self._collection.save(document, write_concern=concern, gossip=_time_of(state))

    async def remove(self, identity: TransactionId) -> None:
        """Remove the document of a commit that has ended.

        No majority is needed: a primary that finds the document again sends the decision again, which changes nothing.
        """
        await self._collection.remove(identity.to_document(), write_concern=LOCAL_WRITE_CONCERN)


def _time_of(state: CommitState) -> Mapping[str, Any]:
    """Return the commit timestamp as a cluster time: mongod refuses a decision later than its clock."""
    if isinstance(state.decision, Commit):
        return {"$clusterTime": signed_cluster_time(state.decision.timestamp)}
    return {}


RETRY_SECONDS: Final = 0.1
"""Maximum first pause before a command is sent to a participant again; it doubles each time."""

RETRY_SECONDS_MAX: Final = 5.0
"""Maximum pause before a command is sent again."""

Answer = Mapping[str, Any] | CommandError


class ParticipantLink:
    """Commands of a coordinator to one participant, which may be this shard itself."""

    def __init__(self, context: ShardContext, identity: TransactionId, shard: str, logger: Logger) -> None:
        self._context = context
        self._shard = shard
        self._logger = logger.bind(shard=shard)
        coordinator = context.require_identity().shard_name
        self._fields: Mapping[str, Any] = {
            **identity.to_document(),
            "autocommit": False,
            COORDINATED_BY.decode(): coordinator,
        }

    async def vote(self) -> Vote:
        """Send ``prepareTransaction`` until the participant votes; there is no time limit."""
        backoff, is_repeated = Backoff(RETRY_SECONDS, RETRY_SECONDS_MAX), False
        while True:
            answer = await self._send({"prepareTransaction": 1}, is_repeated=is_repeated)
            vote = vote_of(self._shard, answer)
            if vote is not None:
                return vote
            await self._pause("prepareTransaction", answer, backoff)
            is_repeated = True

    async def tell(self, decision: Decision) -> None:
        """Send a decision until the participant has executed it; there is no time limit."""
        command = _commit(decision) if isinstance(decision, Commit) else {"abortTransaction": 1}
        backoff, is_repeated = Backoff(RETRY_SECONDS, RETRY_SECONDS_MAX), False
        while True:
            answer = await self._send(command, is_repeated=is_repeated)
            if is_acknowledged(decision, answer):
                return
            await self._pause(next(iter(command)), answer, backoff)
            is_repeated = True

    async def commit_ahead(self, decision: Commit) -> None:
        """Send the decision to commit once, without waiting for a majority; `tell` follows."""
        await self._send(_commit(decision), is_repeated=False, write_concern=LOCAL_WRITE_CONCERN)

    async def _send(
        self, command: Mapping[str, Any], *, is_repeated: bool, write_concern: Mapping[str, Any] = MAJORITY
    ) -> Answer:
        request = {**command, **self._fields, "writeConcern": write_concern}
        try:
            # A shard that does not answer may have moved to other hosts, or be gone.
            return await send_to_shard(self._context, self._shard, "admin", request, may_be_cached=not is_repeated)
        except CommandError as error:
            return error

    async def _pause(self, command: str, answer: Answer, backoff: Backoff) -> None:
        pause = backoff.next_seconds()
        self._logger.warning(
            "Repeating a command of a two-phase commit",
            command=command,
            answer=str(answer if isinstance(answer, CommandError) else answer.get("writeConcernError", answer)),
            retry_seconds=round(pause, 3),
        )
        await trio.sleep(pause)


def _commit(decision: Commit) -> dict[str, Any]:
    return {"commitTransaction": 1, "commitTimestamp": decision.timestamp}


logger = get_logger("shardd.two_phase_commit")

_AHEAD_SECONDS_MAX: Final = 1.0
"""Maximum time for which the other participants wait for the commit on the coordinator's own shard."""


class TransactionCoordinator:
    """The coordinator of one transaction, from the request to commit until its document is deleted.

    Attributes:
        deadline: the end of the transaction's lifetime, on trio's clock.
        is_recovered: whether a former primary began the commit.
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
        """Take the remaining steps. Only the end of the term cancels this; then the next primary resumes."""
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
        # The next primary may have to send the decision to recently added shards, so it must have them in its shard
        # list.
        await self._until_done(self._context.config_times.wait_durable)
        await self._until_done(self._save(places.HANG_BEFORE_WAITING_FOR_PARTICIPANT_LIST_WRITE_CONCERN))
        self.state.participant_list_written()

    async def _collect_votes(self) -> None:
        """Send ``prepareTransaction`` to all participants, until one votes to abort or the transaction expires."""
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
        """Commit on this shard a moment before the others, so that their commits have later cluster times.

        When a document moves to another shard, change streams then report its deletion before its insertion.
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
        """Return a function that writes the document; at the fail point it may not be on a majority yet."""

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
