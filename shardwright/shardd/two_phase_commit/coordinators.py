"""The two-phase commits that this shard coordinates."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import trio

from shardwright.shardd.context.shard_context import ShardContext
from shardwright.shardd.metadata.recovery_gate import RecoveryGate
from shardwright.shardd.transactions.open_transactions import OpenTransactions
from shardwright.shardd.transactions.session_keys import retryable_write_of
from shardwright.shardd.two_phase_commit.commit_state import CommitState
from shardwright.shardd.two_phase_commit.coordinator_documents import CoordinatorDocuments
from shardwright.shardd.two_phase_commit.decision import Abort
from shardwright.shardd.two_phase_commit.local_participant import recover_outcome
from shardwright.shardd.two_phase_commit.statistics import CommitStatistics
from shardwright.shardd.two_phase_commit.transaction_coordinator import TransactionCoordinator, logger
from shardwright.shardd.two_phase_commit.transaction_id import TransactionId
from shardwright.shardd.two_phase_commit.unbegun_commits import UnbegunCommits
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import TRANSIENT_TRANSACTION_ERROR, CommandError

LIFETIME_LIMIT: Final = "transactionLifetimeLimitSeconds"
"""The server parameter of mongod with the time limit for a transaction."""

_LIFETIME_SECONDS: Final = 60.0
"""mongod's default, until its value has been read."""


class TransactionCoordinators:
    """The coordinators of one shard daemon, and the transactions for which it may become one.

    Args:
        context: this shard daemon's context.
        transactions: the transactions that are open on this shard.

    Attributes:
        statistics: counts them.
    """

    def __init__(self, context: ShardContext, transactions: OpenTransactions) -> None:
        self._transactions = transactions
        self._context = context
        self._documents = CoordinatorDocuments(context.mongod)
        self._nursery: trio.Nursery | None = None
        self._gate = RecoveryGate(lambda: context.is_primary)
        self._running: dict[TransactionId, TransactionCoordinator] = {}
        self._unbegun = UnbegunCommits(trio.current_time)
        self._lifetime_seconds = _LIFETIME_SECONDS
        self.statistics = CommitStatistics(context.metrics, self._running.values())

    async def begin_term(self, term: int, nursery: trio.Nursery) -> None:
        """Resume the commits that former primaries left behind, and then accept new ones.

        Args:
            term: the term that begins.
            nursery: the term's nursery, in which coordinators run until step-down.
        """
        # Participants must not learn anything that this primary knows but a majority does not.
        await self._context.wait_majority()
        await self.read_lifetime()
        for document in await self._documents.all():
            self._resume(document, nursery)
        self._nursery = nursery
        self._gate.open()

    def end_term(self) -> None:
        """Forget all. Coordinators were cancelled with their nursery; the next primary resumes them."""
        self._gate.close()
        self._nursery = None
        self._running.clear()
        self._unbegun.clear()

    def expect(self, identity: TransactionId) -> None:
        """Expect to coordinate a transaction, because its first statement on this shard had ``coordinator: true``."""
        if self._unbegun.begin(identity, self._lifetime_seconds):
            self.statistics.created += 1

    def has(self, identity: TransactionId) -> bool:
        """Whether this shard coordinates a transaction, or will if its commit is requested."""
        return identity in self._running or self._unbegun.has(identity)

    @property
    def is_idle(self) -> bool:
        """Whether it is known that no commit is under way."""
        return self._gate.is_open and not self._running

    async def wait_for_attempts(self, write: bytes) -> None:
        """Return when no commit is under way of a transaction in which a retryable write was executed before.

        Args:
            write: as `retryable_write_of`.

        Raises:
            CommandError: NotWritablePrimary; InterruptedDueToReplStateChange, the next primary goes on with a commit.
        """
        await self._gate.wait_open()
        with self._context.sidecar.certainty.while_role_lasts() as scope:
            for coordinator in self.running:
                if retryable_write_of(coordinator.identity.session) == write:
                    await coordinator.ended.wait()
        if scope.cancelled_caught:
            raise CommandError(ErrorCode.InterruptedDueToReplStateChange, "operation was interrupted")

    async def wait_for_retryable_writes(self) -> None:
        """Return when the present commits of transactions in which retryable writes were executed are over.

        A shard that gets their history with a range answers retries by itself, and does not know of commits here. This
        is to be called within a term.

        Raises:
            CommandError: NotWritablePrimary.
        """
        await self._gate.wait_open()
        for coordinator in self.running:
            if retryable_write_of(coordinator.identity.session) is not None:
                await coordinator.ended.wait()

    @property
    def running(self) -> Sequence[TransactionCoordinator]:
        """The commits under way."""
        return tuple(self._running.values())

    async def commit(self, identity: TransactionId, participants: Sequence[str]) -> dict[str, Any]:
        """Commit a transaction, or find out what became of it; returns the reply.

        A new primary first finds out which commits are under way.

        Args:
            identity: the transaction.
            participants: the shards that take part; none to find out its outcome, which prevents a commit that has not
                begun.

        Raises:
            CommandError: it was aborted, with the code of the vote that led to it; NotWritablePrimary; as
                `recover_outcome`.
            BackendError: mongod does not answer.
        """
        await self._gate.wait_open()
        nursery = self._nursery
        assert nursery is not None
        coordinator = self._running.get(identity)
        deadline = self._unbegun.take(identity)
        if coordinator is None and participants and deadline is not None:
            coordinator = self._start(
                TransactionCoordinator(
                    self._context, identity, CommitState(participants), deadline, is_recovered=False
                ),
                nursery,
            )
        if coordinator is None:
            return await self._recover_outcome(identity)
        await coordinator.ended.wait()
        decision = coordinator.state.decision
        if isinstance(decision, Abort):
            labels = (TRANSIENT_TRANSACTION_ERROR,) if decision.code == ErrorCode.NoSuchTransaction else ()
            message = f"Transaction was aborted :: caused by :: {decision.message}"
            raise CommandError(decision.code, message, labels=labels)
        return {}

    async def _recover_outcome(self, identity: TransactionId) -> dict[str, Any]:
        try:
            reply = await recover_outcome(self._context.mongod, identity)
        except CommandError as error:
            if error.code == ErrorCode.NoSuchTransaction:
                self._note_end(identity)
            raise
        self._note_end(identity)
        return reply

    def _note_end(self, identity: TransactionId) -> None:
        """Let migrations go on that wait for a transaction, which has ended without a command of the router."""
        transaction = self._transactions.find(identity.session, identity.number)
        if transaction is not None:
            self._transactions.end(transaction)

    def _resume(self, document: Mapping[str, Any], nursery: trio.Nursery) -> None:
        try:
            identity = TransactionId.from_document(document["_id"])
            state = CommitState.recovered(document)
        except (KeyError, TypeError, CommandError) as error:
            # Kept for the version that wrote it.
            logger.error("Cannot resume a commit of an unknown form", document=str(document), error=str(error))
            return
        logger.info(
            "Resuming a two-phase commit", lsid=identity.session_id, txn_number=identity.number, step=state.step.value
        )
        self.statistics.created += 1
        deadline = trio.current_time() + self._lifetime_seconds
        self._start(TransactionCoordinator(self._context, identity, state, deadline, is_recovered=True), nursery)

    def _start(self, coordinator: TransactionCoordinator, nursery: trio.Nursery) -> TransactionCoordinator:
        self.statistics.started += 1
        self._running[coordinator.identity] = coordinator
        nursery.start_soon(self._run, coordinator)
        return coordinator

    async def _run(self, coordinator: TransactionCoordinator) -> None:
        await coordinator.run()
        self.statistics.count_end(coordinator.state.decision)
        del self._running[coordinator.identity]

    async def read_lifetime(self) -> None:
        """Read from mongod how long transactions may last, for those that begin from now on."""
        reply = await self._context.mongod.command("admin", {"getParameter": 1, LIFETIME_LIMIT: 1})
        self._lifetime_seconds = float(reply[LIFETIME_LIMIT])
